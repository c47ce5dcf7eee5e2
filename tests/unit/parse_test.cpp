#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <sstream>

#include "../fuzz/policy_parse_checks.hpp"
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

config::Document valid(const std::string &text) {
    const auto document = parse(text, "job.json");
    INFO(text);
    if (!document) {
        for (const Diagnostic &diagnostic : document.error()) UNSCOPED_INFO(diagnostic.text());
    }
    REQUIRE(document);
    return *document;
}

Diagnostics errors(const std::string &text) {
    const auto policy = parse(text, "job.json");
    INFO(text);
    REQUIRE_FALSE(policy);
    return policy.error();
}

// Every field, with comments in all places.
const std::string kWhole = R"(// a policy
{
  "$schema": "./policy.schema.json", /* for editors */
  "version": 1,
  "gpu": {
    "*": { "cap": "8GiB", // every device
           "growth": { "start": "2GiB", "step": "512MiB", "every": "10s", "keep_free": "4GiB", "wait": "30s" },
           "cache": { "max": "1GiB", "idle": "1m" } },
    "cuda:0": { "cap": "75%", "growth": { "factor": 1.5 }, "report": "device" },
    "nvml:1": {}, "3B:00.0": { "cap": "1GiB", "growth": { "start": "1GiB" } }, "GPU-8F3a": { "report": "cap" }, "MIG-1": {}
  },
  "release": { "signal": "SIGRTMIN+1", "steps": ["frameworks", "pools"], "idle": "10m", "before_growth": false, "collect": true },
  "frameworks": { "steer": true, "env": { "TF_CPP_MIN_LOG_LEVEL": "1", "EMPTY": "" } },
  "log": { "level": "debug", "file": "curb-\u00e4-%p.log" },
  "trace": { "file": "curb-%p.trace.json" },
  "rules": [
    { "name": "bert", // the first
      "match": { "exe": "python3*", "args": "*train_bert*", "user": "alice", "env": { "SLURM_JOB_NAME": "bert*" } },
      "gpu": { "*": { "cap": "20GiB" }, "3b:00.0": { "growth": { "step": "1GiB" } } },
      "release": { "idle": "1h" }, "frameworks": { "steer": false, "env": { "A": "b" } },
      "log": { "level": "off" }, "trace": { "file": "" } },
    { "match": {} }
  ]
}
)";

}  // namespace

TEST_CASE("What is wrong with a file is said with its line, column, pointer and remedy") {
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

TEST_CASE("Every field is read") {
    using Kind = policy::GpuKey::Kind;
    using policy::GiB, policy::MiB;
    using std::chrono::minutes, std::chrono::seconds;
    const auto bytes = [](policy::Bytes amount) { return policy::Size{policy::Size::Unit::bytes, amount}; };
    policy::GpuPolicy every;
    every.cap = bytes(8 * GiB);
    every.growth.start = bytes(2 * GiB);
    every.growth.step = bytes(512 * MiB);
    every.growth.every = seconds(10);
    every.growth.keep_free = bytes(4 * GiB);
    every.growth.wait = seconds(30);
    every.cache.max = bytes(GiB);
    every.cache.idle = minutes(1);
    policy::GpuPolicy first;
    first.cap = policy::Size{policy::Size::Unit::basis_points, 7500};
    first.growth.factor = 1.5;
    first.report = policy::Report::device;
    policy::GpuPolicy pci;
    pci.cap = bytes(GiB);
    pci.growth.start = bytes(GiB);
    policy::GpuPolicy uuid;
    uuid.report = policy::Report::cap;

    policy::Layer base;
    base.gpu = {{{}, every},
                {{Kind::cuda, 0, {}}, first},
                {{Kind::nvml, 1, {}}, {}},
                {{Kind::pci, 0, "0000:3b:00.0"}, pci},
                {{Kind::gpu_uuid, 0, "GPU-8f3a"}, uuid},
                {{Kind::mig_uuid, 0, "MIG-1"}, {}}};
    base.release = {35, std::vector{policy::Step::frameworks, policy::Step::pools}, minutes(10), false, true};
    base.frameworks = {true, policy::Environment{{"EMPTY", ""}, {"TF_CPP_MIN_LOG_LEVEL", "1"}}};
    base.log = {policy::LogLevel::debug, "curb-\xC3\xA4-%p.log"};
    base.trace = {"curb-%p.trace.json"};

    policy::Rule bert;
    bert.name = "bert";
    bert.match = {"python3*", "*train_bert*", "alice", policy::Environment{{"SLURM_JOB_NAME", "bert*"}}};
    bert.over.gpu.resize(2);
    bert.over.gpu[0].policy.cap = bytes(20 * GiB);
    bert.over.gpu[1].key = {Kind::pci, 0, "0000:3b:00.0"};
    bert.over.gpu[1].policy.growth.step = bytes(GiB);
    bert.over.release.idle = std::chrono::hours(1);
    bert.over.frameworks = {false, policy::Environment{{"A", "b"}}};
    bert.over.log.level = policy::LogLevel::off;
    bert.over.trace.file = "";

    CHECK(valid(kWhole).file == policy::File{base, {bert, {}}});
}

TEST_CASE("The least policy is the version, and then nothing is said") {
    const policy::File nothing;
    CHECK(valid(R"({"version": 1})").file == nothing);
    CHECK(valid("//\n{/**/\"version\"/**/:/**/1/**/}//").file == nothing);
    CHECK(valid(R"({"version": 1, "gpu": {}, "release": {}, "log": {}, "frameworks": {}, "trace": {}, "rules": []})")
              .file == nothing);
    CHECK(valid(gpu(R"("growth": {}, "cache": {})")).file.base.gpu == std::vector<policy::GpuRule>(1));
}

TEST_CASE("An empty list of steps and no signal are something else than leaving them out") {
    const policy::ReleasePolicy release =
        valid(with(R"("release": {"signal": "none", "steps": []})")).file.base.release;
    CHECK(release == policy::ReleasePolicy{0, std::vector<policy::Step>(), {}, {}, {}});
}

TEST_CASE("Values at the ends of their ranges are taken") {
    for (const std::string &text :
         {growth(R"("start": "1B", "step": "1B")"), growth(R"("start": "0.01%", "step": "100%", "every": "0s")"),
          growth(R"("start": "1GiB", "factor": 1.01)"), growth(R"("start": "1GiB", "factor": 100)"),
          growth(R"("start": "1GiB", "factor": 1e2)"), growth(R"("start": "1GiB", "factor": 2, "every": "365d")"),
          growth(R"("keep_free": "0B")"), growth(R"("wait": "0s")"), gpu(R"("cap": "0B")"), gpu(R"("cap": "0%")"),
          gpu(R"("cap": "18446744073709551615B")"), gpu(R"("cap": "8GiB", "growth": {"start": "8GiB", "step": "1B"})"),
          gpu(R"("cap": "1GiB", "growth": {"start": "60%", "step": "1GiB"})"),  // who knows the device
          gpu(R"("cache": {"max": "0B", "idle": "1ms"})"), with(R"("release": {"idle": "1ms"})"),
          with(R"("frameworks": {"env": {"_a1": "x", "MY_LD_PATH": "", "ld_x": "", "XCURB_": ""}})"),
          with(R"("rules": [{"match": {"exe": "", "env": {"LD_PRELOAD": "*", "CURB_CAP": "*"}}, "name": ""}])")}) {
        valid(text);
    }
}

TEST_CASE("The default that the table of fields states is what leaving the field out means") {
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
        // What the growth says has an effect, so it is right, only with a start.
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

TEST_CASE("Every field that is set has its place, devices in their one spelling") {
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

TEST_CASE("A factor is suggested only if it would be taken") {
    const auto suggested = [](const std::string &factor) {
        const Diagnostics found = errors(growth(R"("start": "1GiB", "factor": ")" + factor + R"(")"));
        return found[0].message.find("did you mean " + factor) != std::string::npos;
    };
    CHECK(suggested("1.01"));
    CHECK(suggested("100"));
    for (const char *factor : {"1", "0.5", "-2", "100.5", "1e400", "inf", "nan", "1.5x", ""}) {
        INFO(factor);
        CHECK_FALSE(suggested(factor));
    }
}

TEST_CASE("A conflict that the file has without its rules is told once") {
    const Diagnostics found =
        errors(R"({"version": 1, "gpu": {"*": {"cap": "1GiB", "growth": {"start": "2GiB", "step": "1GiB"}}},
"rules": [{"match": {}}, {"match": {}, "log": {"level": "info"}}]})");
    REQUIRE(found.size() == 1);
    CHECK(found[0].pointer == "/gpu/*/growth/start");
}

TEST_CASE("Conflicts of each rule are told under its name") {
    const Diagnostics found = errors(R"({"version": 1, "gpu": {"*": {"growth": {"start": "2GiB", "step": "1GiB"}}},
"rules": [{"match": {"exe": "a"}, "name": "small", "gpu": {"*": {"cap": "1GiB"}}},
          {"match": {"exe": "b"}, "gpu": {"*": {"cap": "2GiB"}}},
          {"match": {}, "gpu": {"*": {"cap": "512MiB"}}}]})");
    REQUIRE(found.size() == 2);
    CHECK_THAT(found[0].message, contains("with rule 1 \"small\" laid over: it begins above the cap: 2GiB"));
    CHECK_THAT(found[1].message, contains("with rule 3 laid over: it begins above the cap: 2GiB"));
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

TEST_CASE("The examples are valid") {
    unsigned examples = 0;
    for (const auto &entry : std::filesystem::directory_iterator(CURB_EXAMPLES)) {
        const auto text = config::read_file(entry.path().string());
        REQUIRE(text);
        INFO(entry.path());
        CHECK(valid(*text).file != policy::File{});
        ++examples;
    }
    CHECK(examples >= 3);
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

namespace {

void check_answer(const std::string &text) {
    const std::string wrong = fuzz::broken(text);
    if (wrong.empty()) return;  // Catch2's assertions are slow for so many rounds
    INFO(text);
    FAIL(wrong);
}

}  // namespace

TEST_CASE("A file that is cut off anywhere is refused and does no harm") {
    const std::size_t end = kWhole.rfind('}');
    for (std::size_t length = 0; length <= end; ++length) {
        const std::string cut = kWhole.substr(0, length);
        CHECK_FALSE(parse(cut, "job.json"));
        check_answer(cut);
    }
}

TEST_CASE("No mutation of a file does harm") {
    std::mt19937 random(2);
    const std::string bytes = "{}[]\",:/*\\ \n\tu0129eE+-.tfn\"";
    for (int round = 0; round < 10'000; ++round) {
        std::string text = kWhole;
        for (auto n = 1 + random() % 4; n > 0; --n) {
            const std::size_t at = random() % text.size();
            switch (random() % 5) {
                case 0: text[at] = static_cast<char>(random() % 256); break;
                case 1: text[at] = bytes[random() % bytes.size()]; break;
                case 2: text.insert(at, 1, bytes[random() % bytes.size()]); break;
                case 3: text.erase(at, 1 + random() % 8); break;
                default: text.insert(at, text.substr(random() % text.size(), random() % 20));
            }
            if (text.empty()) text = "{";
        }
        check_answer(text);
    }
}

TEST_CASE("What fields say against each other is told beside errors that have no part in it") {
    const auto messages = [](const std::string &text) {
        std::string all;
        for (const Diagnostic &one : errors(text)) all += one.message + "\n";
        return all;
    };
    const std::string of_cap = messages(R"({"version": 1, "log": {"level": "loud"},
        "gpu": {"*": {"cap": "8GB", "growth": {"start": "9GiB"}}}})");
    CHECK_THAT(of_cap, contains("'8GB' is not a size") && contains("'loud' is not a log level") &&
                           contains("the allowance would never grow"));
    // The step is there, though wrong: nothing is said of it as if it were missing.
    const std::string of_step =
        messages(R"({"version": 1, "gpu": {"*": {"growth": {"start": "9GiB", "step": "1GB"}}}})");
    CHECK_THAT(of_step, contains("'1GB' is not a size") && !contains("never grow"));
    CHECK_THAT(messages(R"({"version": 1, "gpu": {"*": {"growth": {"start": "9GiB", "stp": "1GiB"}}}})"),
               contains("unknown key") && !contains("never grow"));
}

TEST_CASE("A file full of errors has all of them told") {
    std::string text = "{\"version\": 1";
    for (int i = 0; i < 20'000; ++i) text += ",\n\"key" + std::to_string(i) + "\": [[[1]]]";
    CHECK(errors(text + "}").size() == 20'000);
}
