// parse() reads the text of a policy, or reports every error with its place.
#include <algorithm>
#include <ctime>
#include <iterator>
#include <random>
#include <sstream>

#include "../../fuzz/policy_parse_checks.hpp"
#include "bad_policies.hpp"
#include "catch.hpp"
#include "config/load.hpp"
#include "matrix.hpp"
#include "policy/fields.hpp"

using namespace curb;
using config::Diagnostic;
using config::Diagnostics;
using config::parse;

namespace {

#ifdef CURB_SANITIZED
constexpr int kSlowness = 20;
#else
constexpr int kSlowness = 1;
#endif

config::Document valid(const std::string &text) {
    const auto document = parse(text, "job.json");
    INFO(text);
    if (!document) {
        for (const Diagnostic &diagnostic : document.error()) UNSCOPED_INFO(diagnostic.text());
    }
    REQUIRE(document);
    return *document;
}

}  // namespace

TEST_CASE("Each mistake is reported with its line, column, pointer and remedy") {
    REQUIRE(kBad.size() >= matrix::figure(matrix::Name::bad_policies));
    for (const Bad &bad : kBad) {
        INFO(bad.text.substr(0, 200));
        const Diagnostics found = errors(bad.text);
        REQUIRE(found.size() == 1);
        CHECK(found[0].file == "job.json");
        CHECK(found[0].line == bad.line);
        CHECK(found[0].column == bad.column);
        if (bad.text.size() < 1'000) CHECK(found[0].pointer == bad.pointer);
        CHECK_THAT(found[0].message, contains(bad.fragment));
    }
    matrix::report(matrix::Name::bad_policies, kBad.size());
}

// fields_test tests writing.
TEST_CASE("Every field is read") {
    CHECK(fuzz::written_back(valid(kWhole).file) ==
          R"({"version": 1, )"
          R"("gpu": {"*": {"cap": "8GiB", "growth": {"start": "2GiB", "step": "512MiB", "every": "10s", )"
          R"("keep_free": "4GiB", "wait": "30s"}, "cache": {"max": "1GiB", "idle": "1m"}}, )"
          R"("cuda:0": {"cap": "75%", "job_cap": "90%", "growth": {"factor": 1.5}, "report": "device"}, )"
          R"("0000:3b:00.0": {"cap": "1GiB", "growth": {"start": "1GiB"}}, "GPU-8f3a": {"report": "cap"}}, )"
          R"("job": {"cap": "16GiB", "of": "user"}, "share": "order", )"
          R"("release": {"signal": "SIGRTMIN+1", "steps": ["frameworks", "pools"], "idle": "10m", )"
          R"("before_growth": false, "collect": true}, )"
          R"("suspend": {"idle": "10m", "when_others_wait": "5s", "light": false, "deep": "never", )"
          R"("host_memory": "64GiB"}, )"
          R"("frameworks": {"steer": true, "env": { "EMPTY": "", "TF_CPP_MIN_LOG_LEVEL": "1" }}, )"
          R"("log": {"level": "debug", "file": "curb-ä-%p.log"}, "trace": {"file": "curb-%p.trace.json"}, )"
          R"("rules": [{"match": {"exe": "python3*", "args": "*train_bert*", "user": "alice", )"
          R"("env": { "SLURM_JOB_NAME": "bert*" }}, "name": "bert", )"
          R"("gpu": {"*": {"cap": "20GiB"}, "0000:3b:00.0": {"growth": {"step": "1GiB"}}}, )"
          R"("release": {"idle": "1h"}, "frameworks": {"steer": false, "env": { "A": "b" }}, )"
          R"("log": {"level": "off"}, "trace": {"file": ""}}, {"match": {}}]})");
}

TEST_CASE("The shortest policy is the version alone") {
    const policy::File nothing;
    CHECK(valid(R"({"version": 1})").file == nothing);
    CHECK(valid("//\n{/**/\"version\"/**/:/**/1/**/}//").file == nothing);
    CHECK(valid(R"({"version": 1, "gpu": {}, "release": {}, "log": {}, "frameworks": {}, "trace": {}, "rules": []})")
              .file == nothing);
    CHECK(valid(gpu(R"("growth": {}, "cache": {})")).file.base.gpu == std::vector<policy::GpuRule>(1));
}

TEST_CASE("An empty list of steps and the signal none differ from fields that are left out") {
    const policy::ReleasePolicy release =
        valid(with(R"("release": {"signal": "none", "steps": []})")).file.base.release;
    CHECK(release == policy::ReleasePolicy{0, std::vector<policy::Step>(), {}, {}, {}});
}

TEST_CASE("Values at the ends of their ranges are accepted") {
    for (const std::string &text :
         {growth(R"("start": "1B", "step": "1B")"), growth(R"("start": "0.01%", "step": "100%", "every": "0s")"),
          growth(R"("start": "1GiB", "factor": 1.01)"), growth(R"("start": "1GiB", "factor": 100)"),
          growth(R"("start": "1GiB", "factor": 1e2)"), growth(R"("start": "1GiB", "factor": 2, "every": "365d")"),
          growth(R"("keep_free": "0B")"), growth(R"("wait": "0s")"), gpu(R"("cap": "0B")"), gpu(R"("cap": "0%")"),
          gpu(R"("cap": "18446744073709551615B")"), gpu(R"("cap": "8GiB", "growth": {"start": "8GiB", "step": "1B"})"),
          gpu(R"("cap": "1GiB", "growth": {"start": "60%", "step": "1GiB"})"),  // depends on the device
          gpu(R"("cache": {"max": "0B", "idle": "1ms"})"), with(R"("release": {"idle": "1ms"})"),
          with(R"("frameworks": {"env": {"_a1": "x", "MY_LD_PATH": "", "ld_x": "", "XCURB_": "", "AZaz": ""}})"),
          with(R"("rules": [{"match": {"exe": "", "env": {"LD_PRELOAD": "*", "CURB_CAP": "*"}}, "name": ""}])")}) {
        valid(text);
    }
}

TEST_CASE("A field that is left out means the default in the table of fields") {
    for (const policy::Field &field : policy::fields()) {
        const std::string fallback = field.fallback();
        if (fallback.empty()) continue;
        std::string text = "{\"version\": 1, ";
        std::string closing = "}";
        std::string_view rest = field.pointer.substr(1);
        for (std::size_t slash = rest.find('/'); slash != std::string_view::npos; slash = rest.find('/')) {
            text += "\"" + std::string(rest.substr(0, slash)) + "\": {";
            closing += "}";
            rest.remove_prefix(slash + 1);
        }
        // Fields of growth are valid only with a start.
        if (field.pointer.find("/growth/") != std::string_view::npos) text += R"("start": "1GiB", "step": "1GiB", )";
        const std::string without = text.substr(0, text.find_last_not_of(", ") + 1) + closing;
        text += "\"" + std::string(rest) + "\": " + fallback + closing;
        INFO(text);
        INFO(without);
        const auto in_force = [](const std::string &json) { return policy::in_force(valid(json).file.base, {}, {}); };
        const policy::Policy with_it = in_force(text), without_it = in_force(without);
        CHECK(terms_for(with_it, {}, policy::GiB) == terms_for(without_it, {}, policy::GiB));
        CHECK(static_cast<policy::ReleasePolicy>(with_it.release) == without_it.release);
        CHECK(with_it.frameworks == without_it.frameworks);
        CHECK(with_it.log == without_it.log);
        CHECK(with_it.trace == without_it.trace);
    }
}

TEST_CASE("Every field that is set has its place, under the one spelling of its device") {
    const config::Document document = valid(R"({"version": 1,
"gpu": {"3B:00.0": {"cap":
        "8GiB"}},
"rules": [{"match": {"exe": "a"}},
          {"match": {}, "gpu": {"GPU-8F3A": {"growth": {"start": "1GiB", "step": "1GiB"}}}}]})");
    const auto place = [&](const char *pointer) {
        const auto found = document.places.find(pointer);
        return found == document.places.end() ? std::string("none") : found->second.text();
    };
    CHECK(place("/version") == "job.json:1:13");
    CHECK(place("/gpu/0000:3b:00.0/cap") == "job.json:3:9");
    CHECK(place("/rules/0/match/exe") == "job.json:4:29");
    CHECK(place("/rules/1/gpu/GPU-8f3a/growth/start") == "job.json:5:66");
    CHECK(document.places.size() == 5);
}

TEST_CASE("A factor in quotes is suggested as a number only if the number is valid") {
    const auto is_suggested = [](const std::string &text) {
        return errors(factor('"' + text + '"'))[0].message.find("did you mean " + text) != std::string::npos;
    };
    for (const char *text : {"1.01", "100"}) CHECK(is_suggested(text));
    for (const char *text : {"1", "0.5", "-2", "100.5", "1e400", "inf", "nan", "1.5x", ""})
        CHECK_FALSE(is_suggested(text));
}

TEST_CASE("All errors of a file are found, in the order of its text") {
    const Diagnostics found = errors(R"({
  "version": 2,
  "gpu": { "*": { "cap": "8Gib", "kap": 1 }, "nvml0": { "cap": -1 } },
  "release": { "steps": ["pool", 3], "signal": "USR1" },
  "log": { "level": "loud", "level": "quiet" },
  "rules": [{ "name": 1, "match": { "exe": 2 }, "gpu": { "*": { "growth": { "factor": 1 } } } }, {}]
})");
    std::vector<std::string> places;
    for (const Diagnostic &diagnostic : found) {
        places.push_back(std::to_string(diagnostic.line) + ":" + std::to_string(diagnostic.column) +
                         diagnostic.pointer);
    }
    CHECK(places == std::vector<std::string>{"2:14/version", "3:26/gpu/*/cap", "3:34/gpu/*/kap", "3:46/gpu/nvml0",
                                             "3:64/gpu/nvml0/cap", "4:26/release/steps/0", "4:34/release/steps/1",
                                             "4:48/release/signal", "5:21/log/level", "5:29/log/level",
                                             "5:38/log/level", "6:23/rules/0/name", "6:44/rules/0/match/exe",
                                             "6:87/rules/0/gpu/*/growth/factor", "6:98/rules/1"});
}

TEST_CASE("A diagnostic reads like a compiler's") {
    CHECK(errors(with("\"gpu\": {\"*\": {\"cap\": \"8Gib\"}}"))[0].text() ==
          "job.json:2:22: /gpu/*/cap: '8Gib' is not a size; did you mean \"8GiB\"?");
    CHECK(Diagnostic{"job.json", 0, 0, "", "there is no such file"}.text() == "job.json: there is no such file");
    CHECK(Diagnostic{"job.json", 1, 2, "/a\nb", "no"}.text() == "job.json:1:2: /a\\x0Ab: no");
}

TEST_CASE("Places are right whatever blanks and comments stand between the tokens") {
    std::istringstream split(R"({ "log" : { "fi\u006ce" : "a\"/*\\" } , "x" : [ -1.5e+3 , null , true ] ,
                                 "version" : WRONG , "release" : { } })");
    const std::vector<std::string> tokens{std::istream_iterator<std::string>(split), {}};
    const std::vector<std::string> between{
        "", " ", "\t", "\n", "\r\n", "// , : \" {\n", "  ", "/**/", "/* \" , :\n } */", "//\n", "\n\n"};
    std::mt19937 random(1);
    for (int round = 0; round < 500; ++round) {
        std::string text;
        std::size_t wrong = 0;
        std::size_t unknown = 0;
        for (const std::string &token : tokens) {
            for (auto n = random() % 3; n > 0; --n) text += between[random() % between.size()];
            if (token == "WRONG") wrong = text.size();
            if (token == "\"x\"") unknown = text.size();
            text += token == "WRONG" ? "7" : token;
        }
        const auto place = [&](std::size_t offset) {
            const std::string before = text.substr(0, offset);
            const auto line = std::count(before.begin(), before.end(), '\n') + 1;
            const std::size_t start = before.rfind('\n') + 1;  // npos + 1 is 0
            return std::pair(static_cast<unsigned>(line), static_cast<unsigned>(offset - start + 1));
        };
        const Diagnostics found = errors(text);
        INFO(text);
        REQUIRE(found.size() == 2);
        CHECK(std::pair(found[0].line, found[0].column) == place(unknown));
        CHECK(std::pair(found[1].line, found[1].column) == place(wrong));
    }
}

TEST_CASE("Each conflict between fields is reported once, beside errors in other fields") {
    const auto messages = [](const std::string &members) {
        std::string all;
        for (const Diagnostic &one : errors(with(members))) all += one.message + "\n";
        return all;
    };
    CHECK_THAT(messages(R"("log": {"level": "loud"}, "gpu": {"*": {"cap": "8GB", "growth": {"start": "9GiB"}}})"),
               contains("'8GB' is not a size") && contains("'loud' is not a log level") &&
                   contains("the allowance would never grow"));
    // A step that is there but wrong is not reported as missing.
    CHECK_THAT(messages(R"("gpu": {"*": {"growth": {"start": "9GiB", "step": "1GB"}}})"),
               contains("'1GB' is not a size") && !contains("never grow"));
    CHECK_THAT(messages(R"("gpu": {"*": {"growth": {"start": "9GiB", "stp": "1GiB"}}})"),
               contains("unknown key") && !contains("never grow"));
    // A conflict in the file without its rules is not repeated for each rule.
    CHECK(errors(with(R"("gpu": {"*": {"cap": "1GiB", "growth": {"start": "2GiB", "step": "1GiB"}}},
                         "rules": [{"match": {}}, {"match": {}, "gpu": {"*": {"report": "cap"}}}])"))
              .size() == 1);
    const Diagnostics of_rules = errors(with(R"("gpu": {"*": {"growth": {"start": "2GiB", "step": "1GiB"}}},
        "rules": [{"match": {"exe": "a"}, "name": "small", "gpu": {"*": {"cap": "1GiB"}}},
                  {"match": {"exe": "b"}, "gpu": {"*": {"cap": "2GiB"}}},
                  {"match": {}, "gpu": {"*": {"cap": "512MiB"}}}])"));
    REQUIRE(of_rules.size() == 2);
    CHECK_THAT(of_rules[0].message, contains("with rule 1 \"small\" laid over: it begins above the cap: 2GiB"));
    CHECK_THAT(of_rules[1].message, contains("with rule 3 laid over: it begins above the cap: 2GiB"));
}

TEST_CASE("The first hundred errors of a file full of errors are reported, in a moment and in little memory") {
    std::string keys, repeated, below, steps;
    for (int i = 0; i < 80'000; ++i) {
        keys += ",\n\"key" + std::to_string(i) + "\": 1";
        repeated += R"(,"version":1)";
        below += R"("a":1,)";
        steps += R"("pools",)";
    }
    const std::string long_key = R"("gpu": {")" + std::string(500'000, 'k') + R"(": {)" + below;
    const std::string texts[] = {"{\"version\": 1" + keys + "}", "{\"version\": 1" + repeated + "}",
                                 R"({"version": 1, "release": {"steps": [)" + steps + R"("pools"]}})",
                                 R"({"version": 1, )" + long_key + R"("b":1}}})"};
    for (const std::string &text : texts) {
        INFO(text.substr(0, 100));
        const std::clock_t begin = std::clock();  // CPU time of this process: the machine may be busy
        const auto policy = parse(text, "job.json");
        const auto ticks = std::clock() - begin;
        REQUIRE_FALSE(policy);
        CHECK(policy.error().size() <= 101);
        CHECK_THAT(policy.error().back().message, contains("errors up to here, and the rest was not read"));
        CHECK(ticks < CLOCKS_PER_SEC / 2 * kSlowness);
    }
}
