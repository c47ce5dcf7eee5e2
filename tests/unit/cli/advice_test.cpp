// The warnings of `curb policy check` about valid policies.
#include "policies/policy_advice.hpp"

#include <filesystem>

#include "catch.hpp"

using namespace curb;

namespace {

// Returns each warning as "line:column pointer message".
std::vector<std::string> warnings(const std::string &members) {
    const auto document = config::parse("{ \"version\": 1,\n" + members + " }", "job.json");
    INFO(members);
    REQUIRE(document);
    std::vector<std::string> out;
    for (const config::Diagnostic &one : cli::advice(*document))
        out.push_back(std::to_string(one.line) + ":" + std::to_string(one.column) + " " + one.pointer + " " +
                      one.message);
    return out;
}
std::vector<std::string> of_pattern(const std::string &pattern) {
    return warnings(R"("rules": [{ "match": { "exe": ")" + pattern + R"(" } }])");
}

}  // namespace

TEST_CASE("a pattern that looks like a mistake gets a warning at its place") {
    CHECK(of_pattern("python[3") ==
          std::vector<std::string>{"2:31 /rules/0/match/exe \"python[3\" has a '[' that is never closed, so it stands "
                                   "for itself"});
    for (const char *pattern : {"^python.*$", "^python", "python$", "py.*"}) {
        const auto said = of_pattern(pattern);
        REQUIRE(said.size() == 1);
        CHECK_THAT(said[0], contains("looks like a regular expression"));
    }
    REQUIRE(of_pattern("*\\\\").size() == 1);
    CHECK_THAT(of_pattern("*\\\\")[0], contains("stands before nothing"));
    for (const char *pattern : {"python3*", "python[23]", "[!]]x", "[]]", "\\\\[x", "a]", "x.y", "[a-z]*.py", "$x", ""})
        CHECK(of_pattern(pattern).empty());
    const auto env = warnings(R"("rules": [{ "match": { "env": { "JOB": "[x" } } }])");
    REQUIRE(env.size() == 1);
    CHECK_THAT(env[0], contains("/rules/0/match/env JOB: \"[x\""));
}

TEST_CASE("a cap of 0 anywhere, and a ~ in a file name, get a warning") {
    CHECK(warnings(R"("log": { "file": "~/curb.log" }, "trace": { "file": "~me/run.json" })").size() == 2);
    CHECK(warnings(R"("log": { "file": "curb~.log" }, "trace": { "file": "/tmp/~x" })").empty());
    for (const char *cap : {"0B", "0%", "0GiB"}) {
        const auto said = warnings(R"("gpu": { "*": { "cap": ")" + std::string(cap) +
                                   R"(" } }, "rules": [{ "match": {}, "gpu": { "cuda:1": { "cap": "0B" } } }])");
        REQUIRE(said.size() == 2);
        CHECK_THAT(said[0], contains("2:24 /gpu/*/cap a cap of nothing refuses every allocation"));
        CHECK_THAT(said[1], contains("/rules/0/gpu/cuda:1/cap "));
    }
    CHECK(warnings(R"("gpu": { "*": { "cap": "1B" } })").empty());
}

TEST_CASE("call stacks without a trace get a warning") {
    const auto said = warnings(R"("trace": { "stacks": "64MiB" })");
    REQUIRE(said.size() == 1);
    CHECK_THAT(said[0], contains("/trace/stacks without \"file\" there is no trace"));
    CHECK(warnings(R"("trace": { "stacks": "64MiB", "file": "t" })").empty());
    CHECK(warnings(R"("trace": { "file": "t" }, "rules": [{ "match": {}, "trace": { "stacks": "1MiB" } }])").empty());
}

TEST_CASE("timed growth steps without a wait get a warning, unless \"wait\" is 0") {
    const auto growth = [](const std::string &more) {
        return R"("gpu": { "*": { "growth": { "start": "1GiB", "step": "1GiB")" + more + " } } }";
    };
    REQUIRE(warnings(growth(R"(, "every": "10s")")).size() == 1);
    CHECK_THAT(warnings(growth(R"(, "every": "10s")"))[0], contains("/gpu/*/growth/every without \"wait\" a request"));
    for (const char *more :
         {"", R"(, "every": "0s")", R"(, "every": "10s", "wait": "0s")", R"(, "every": "10s", "wait": "1m")"})
        CHECK(warnings(growth(more)).empty());
    const std::string rule = R"(, "rules": [{ "match": {}, "gpu": { "cuda:0": { "growth": { "every": "1m" } } } }])";
    CHECK(warnings(growth(R"(, "wait": "1m")") + rule).empty());
    CHECK(warnings(growth("") + rule).size() == 1);
}

TEST_CASE("turns that are short, or cannot be, get a warning") {
    const auto short_one = warnings(R"("suspend": { "turn": "9s" })");
    REQUIRE(short_one.size() == 1);
    CHECK_THAT(short_one[0], contains("/suspend/turn so short a turn"));
    CHECK(warnings(R"("suspend": { "turn": "10s" })").empty());
    const auto impossible = warnings(R"("suspend": { "turn": "1m", "light": false })");
    REQUIRE(impossible.size() == 1);
    CHECK_THAT(impossible[0], contains("there are no turns"));
}

TEST_CASE("no example gets a warning") {
    for (const auto &entry : std::filesystem::directory_iterator(CURB_EXAMPLES)) {
        CAPTURE(entry.path());
        const auto text = config::read_file(entry.path().string());
        REQUIRE(text);
        const auto document = config::parse(*text, entry.path().string());
        REQUIRE(document);
        CHECK(cli::advice(*document).empty());
    }
}
