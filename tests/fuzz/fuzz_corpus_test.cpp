// What the fuzzer began with and what it found, with any compiler.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "catch.hpp"
#include "policy_parse_checks.hpp"

using namespace curb;

namespace {

std::vector<std::filesystem::path> corpus() {
    std::vector<std::filesystem::path> out;
    for (const char *directory : {CURB_CORPUS, CURB_EXAMPLES})
        for (const auto &entry : std::filesystem::directory_iterator(directory)) out.push_back(entry.path());
    std::sort(out.begin(), out.end());
    return out;
}

std::string text_of(const std::filesystem::path &path) {
    std::ostringstream out;
    out << std::ifstream(path, std::ios::binary).rdbuf();
    return out.str();
}

}  // namespace

TEST_CASE("Of every file of the corpus all holds that must hold of any text") {
    const auto files = corpus();
    REQUIRE(files.size() >= 30);
    for (const auto &path : files) {
        INFO(path);
        CHECK(fuzz::broken(text_of(path)) == "");
    }
}

TEST_CASE("Of every file of the corpus cut off anywhere all holds too") {
    for (const auto &path : corpus()) {
        const std::string text = text_of(path);
        for (std::size_t length = 0; length < std::min<std::size_t>(text.size(), 2'000); ++length) {
            const std::string wrong = fuzz::broken(text.substr(0, length));
            if (wrong.empty()) continue;  // Catch2's assertions are slow for so many rounds
            INFO(path << " cut off at " << length);
            FAIL(wrong);
        }
    }
}

TEST_CASE("The checks tell a diagnostic that is outside the text, out of order or on two lines") {
    const std::string text = "{\n}";
    const auto told = [&](config::Diagnostic one) { return fuzz::unsound(text, {std::move(one)}); };
    CHECK(told({"job.json", 2, 2, "", "no"}) == "");
    CHECK(told({"job.json", 2, 3, "", "no"}) != "");
    CHECK(told({"job.json", 3, 1, "", "no"}) != "");
    CHECK(told({"job.json", 0, 0, "", "no"}) != "");
    CHECK(told({"job.json", 1, 1, "", ""}) != "");
    CHECK(told({"job.json", 1, 1, "", "a\nb"}) != "");
    CHECK(told({"other.json", 1, 1, "", "no"}) != "");
    CHECK(fuzz::unsound(text, {{"job.json", 2, 1, "", "b"}, {"job.json", 1, 1, "", "a"}}) != "");
}

TEST_CASE("The checks tell a field without a place") {
    const std::string text = R"({"version": 1, "log": {"level": "info"}})";
    auto document = config::parse(text, fuzz::kName);
    REQUIRE(document);
    CHECK(fuzz::misplaced(text, *document) == "");
    document.value().places.erase("/log/level");
    CHECK(fuzz::misplaced(text, *document) != "");
}
