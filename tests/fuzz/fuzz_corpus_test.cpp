// What the fuzzer of policies began with and what it found, with any compiler; and what tests of the parser hold.
#include "../unit/bad_policies.hpp"
#include "corpus.hpp"
#include "policy_parse_checks.hpp"

using namespace curb;

TEST_CASE("Of every file of the corpus all holds that must hold of any text") {
    fuzz::check_all(fuzz::corpus({CURB_CORPUS "/policy", CURB_EXAMPLES}), 30, fuzz::broken);
}

TEST_CASE("Of every wrong policy all holds too, and it is none") {
    for (const Bad &bad : kBad) {
        INFO(bad.text.substr(0, 200));
        CHECK(fuzz::broken(bad.text) == "");
        CHECK_FALSE(config::parse(bad.text, fuzz::kName));
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
