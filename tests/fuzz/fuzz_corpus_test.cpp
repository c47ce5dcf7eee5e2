// Checks the corpus of the fuzzer of policies, with any compiler. mutation_test has the bad policies of the unit tests.
#include "corpus.hpp"
#include "policy_parse_checks.hpp"

using namespace curb;

TEST_CASE("Every file of the corpus passes the checks of any text") {
    fuzz::check_all(fuzz::corpus({CURB_CORPUS "/policy", CURB_EXAMPLES}), 30, fuzz::broken);
}

TEST_CASE("The checks find a diagnostic outside the text, out of order or on two lines, and a field without a place") {
    const std::string text = "{\n}";
    const auto wrong = [&](config::Diagnostic one) { return fuzz::unsound(text, {std::move(one)}); };
    CHECK(wrong({"job.json", 2, 2, "", "no"}) == "");
    CHECK(wrong({"job.json", 2, 3, "", "no"}) != "");
    CHECK(wrong({"job.json", 3, 1, "", "no"}) != "");
    CHECK(wrong({"job.json", 0, 0, "", "no"}) != "");
    CHECK(wrong({"job.json", 1, 1, "", ""}) != "");
    CHECK(wrong({"job.json", 1, 1, "", "a\nb"}) != "");
    CHECK(wrong({"other.json", 1, 1, "", "no"}) != "");
    CHECK(fuzz::unsound(text, {{"job.json", 2, 1, "", "b"}, {"job.json", 1, 1, "", "a"}}) != "");
    const std::string policy = R"({"version": 1, "log": {"level": "info"}})";
    auto document = config::parse(policy, fuzz::kName);
    REQUIRE(document);
    CHECK(fuzz::misplaced(policy, *document) == "");
    document.value().places.erase("/log/level");
    CHECK(fuzz::misplaced(policy, *document) != "");
}
