// What the fuzzer of traces began with and what it found, with any compiler.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "catch.hpp"
#include "trace_read_checks.hpp"

using namespace curb;

namespace {

std::vector<std::filesystem::path> corpus() {
    std::vector<std::filesystem::path> out;
    for (const auto &entry : std::filesystem::directory_iterator(CURB_TRACE_CORPUS)) out.push_back(entry.path());
    std::sort(out.begin(), out.end());
    return out;
}

std::string text_of(const std::filesystem::path &path) {
    std::ostringstream out;
    out << std::ifstream(path, std::ios::binary).rdbuf();
    return out.str();
}

}  // namespace

TEST_CASE("Of every trace of the corpus all holds that must hold of any file") {
    REQUIRE(corpus().size() >= 12);
    for (const auto &path : corpus()) {
        INFO(path);
        CHECK(fuzz::broken_trace(text_of(path)) == "");
    }
}

TEST_CASE("Of every trace of the corpus cut off anywhere all holds too") {
    for (const auto &path : corpus()) {
        const std::string text = text_of(path);
        for (std::size_t length = 0; length < std::min<std::size_t>(text.size(), 2'500); length += 3) {
            const std::string wrong = fuzz::broken_trace(text.substr(0, length));
            if (wrong.empty()) continue;  // Catch2's assertions are slow for so many rounds
            INFO(path << " cut off at " << length);
            FAIL(wrong);
        }
    }
}

TEST_CASE("The checks tell where the two readers of lines differ") {
    const std::string line =
        R"({"ph":"i","s":"t","name":"alloc","ts":1.000,"pid":1,"tid":1,"args":{"gpu":0,"bytes":1}},)";
    cli::Moment moment;
    std::string_view text;
    REQUIRE(cli::scan(line, moment, text));
    CHECK(fuzz::disagreement(line) == "");
    CHECK(fuzz::broken_trace("[\n" + line) == "");
}
