#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "catch.hpp"
#include "config/load.hpp"
#include "config/to_json.hpp"
#include "policy/fields.hpp"

using namespace curb;
using config::Diagnostic;
using config::Diagnostics;
using config::parse;

namespace {

policy::Policy valid(const std::string &text) {
    const auto policy = parse(text, "job.json");
    INFO(text);
    if (!policy) {
        for (const Diagnostic &diagnostic : policy.error()) UNSCOPED_INFO(diagnostic.text());
    }
    REQUIRE(policy);
    return *policy;
}

Diagnostics errors(const std::string &text) {
    const auto policy = parse(text, "job.json");
    INFO(text);
    REQUIRE_FALSE(policy);
    return policy.error();
}

// Every field of the first part, with comments in all places.
const std::string kWhole = R"(// a policy
{
  "$schema": "./policy.schema.json", /* for editors */
  "version": 1,
  "gpu": {
    "*": { "cap": "8GiB" }, // every device
    "cuda:0": { "cap": "75%", "report": "device" },
    "nvml:1": {}, "3B:00.0": {}, "GPU-8F3a": { "report": "cap" }, "MIG-1": {}
  },
  "release": { "signal": "SIGRTMIN+1", "steps": ["frameworks", "pools"] },
  "log": { "level": "debug", "file": "curb-\u00e4-%p.log" }
}
)";

struct Bad {
    std::string text;
    unsigned line;
    unsigned column;
    std::string pointer;
    std::string fragment;  // of the message
};

// A policy that is right but for what stands in it.
std::string with(const std::string &members) { return "{\"version\": 1,\n" + members + "}"; }

const std::vector<Bad> kBad = {
    // The file as a whole.
    {"", 1, 1, "", "the file is empty"},
    {" \n\t\n", 3, 1, "", "the file is empty"},
    {"// nothing\n", 2, 1, "", "comments only"},
    {"/* nothing */", 1, 14, "", "comments only"},
    {"/* nothing", 1, 1, "", "comment that begins here is not closed"},
    {"\xEF\xBB\xBF{\"version\": 1}", 1, 1, "", "byte order mark"},
    {std::string("\xFF\xFE{\0", 4), 1, 1, "", "UTF-16"},
    {std::string("{\"version\": 1}\n\0garbage", 23), 2, 1, "", "NUL"},
    {std::string("{\"version\"\0: 1}", 15), 1, 11, "", "NUL"},
    {"{\"version\": 1, \"log\": {\"file\": \"\xC3\"}}", 1, 33, "", "not UTF-8"},
    {"{\"version\": 1} // \xC0\xAF", 1, 19, "", "not UTF-8"},          // overlong
    {"{\"version\": 1} // \xED\xA0\x80", 1, 19, "", "not UTF-8"},      // surrogate
    {"{\"version\": 1} // \xF4\x90\x80\x80", 1, 19, "", "not UTF-8"},  // beyond U+10FFFF
    {"{\"version\": 1} // \xE2\x82", 1, 19, "", "not UTF-8"},          // cut off
    {"[]", 1, 1, "", R"(a policy is an object, as in { "version": 1 }, not an array)"},
    {"null", 1, 1, "", "not null"},
    {"  42", 1, 3, "", "not the number 42"},
    {"\"8GiB\"", 1, 1, "", "not the string \"8GiB\""},
    {"true", 1, 1, "", "not true"},
    {"{}", 1, 1, "", R"(the version is missing; add "version": 1)"},
    {"\n  {\"log\": {}}", 2, 3, "", "the version is missing"},

    // Not JSON.
    {"{", 1, 2, "", "the object that begins at 1:1 is not closed"},
    {"{\"version\": 1", 1, 14, "", "the object that begins at 1:1 is not closed"},
    {"{\"version\": 1,", 1, 15, "", "the object that begins at 1:1 is not closed"},
    {"{\"version\":", 1, 12, "/version", "the object that begins at 1:1 is not closed"},
    {"{\"version\"", 1, 11, "", "the object that begins at 1:1 is not closed"},
    {"{\"version", 1, 2, "", "the string that begins here is not closed"},
    {"{\n\"release\": {\n  \"steps\": [\"pools\"", 3, 20, "/release/steps", "array that begins at 3:12 is not closed"},
    {"{\"version\": 1,}", 1, 14, "", "nothing follows this ','; take it out"},
    {with("\"release\": {\"steps\": [\"pools\" , ]}"), 2, 31, "/release/steps", "nothing follows this ','"},
    {"{\"version\": 1,,}", 1, 15, "", "',' stands where a key in double quotes is expected"},
    {"{,}", 1, 2, "", "a key in double quotes"},
    {"{\"version\": 1}}", 1, 15, "", "'}' follows the end"},
    {"{\"version\": 1} x", 1, 16, "", "'x' follows the end"},
    {"{\"version\": 1}\n{\"version\": 1}", 2, 1, "", "'{' follows the end"},
    {"{\"version\": 1} /* x", 1, 16, "", "comment that begins here is not closed"},
    {"{\"version\": 1, /* x }", 1, 16, "", "comment that begins here is not closed"},
    {"{\"version\": /* x }", 1, 13, "/version", "comment that begins here is not closed"},
    {"{\"version\": 1 / 2}", 1, 15, "", "is missing before '/'"},
    {"{\"version\": 1 # one\n}", 1, 15, "", "a ',' or '}' is missing before '#'"},
    {"{\"version\": 1 \"gpu\": {}}", 1, 15, "", "a ',' or '}' is missing before \"gpu\""},
    {"{\"version\" 1}", 1, 12, "", "a ':' is missing after the key \"version\""},
    {"{\"version\"= 1}", 1, 11, "", "a ':' is missing after the key \"version\""},
    {"{version: 1}", 1, 2, "", "'version' stands where a key in double quotes is expected"},
    {"{'version': 1}", 1, 2, "", "'version' stands where a key in double quotes is expected"},
    {"{1: 1}", 1, 2, "", "'1' stands where a key"},
    {"{\"version\": }", 1, 13, "/version", "a value is missing before '}'"},
    {"{\"version\": : 1}", 1, 13, "/version", "a value is missing before ':'"},
    {with("\"release\": {\"steps\": [,]}"), 2, 23, "/release/steps", "a value is missing before ','"},
    {with("\"release\": {\"steps\": [\"pools\"}}"), 2, 30, "/release/steps", "a ',' or ']' is missing before '}'"},
    {"{\"version\": one}", 1, 13, "/version", "'one' is not a value of JSON"},
    {"{\"version\": True}", 1, 13, "/version", "'True' is not a value of JSON"},
    {"{\"version\": 'x'}", 1, 13, "/version", "strings stand in double quotes"},
    {"{\"version\": nullx}", 1, 13, "", "'nullx' is not a value of JSON"},
    {"{\"version\": 01}", 1, 13, "", "'01' is not a number"},
    {"{\"version\": +1}", 1, 13, "/version", "'+1' is not a number"},
    {"{\"version\": .5}", 1, 13, "/version", "'.5' is not a number"},
    {"{\"version\": 1.}", 1, 13, "/version", "'1.' is not a number"},
    {"{\"version\": 0x1}", 1, 13, "", "'0x1' is not a number"},
    {"{\"version\": -}", 1, 13, "/version", "'-' is not a number"},
    {"{\"version\": NaN}", 1, 13, "/version", "'NaN' is not a value"},
    {"{\"version\": 1e999}", 1, 13, "/version", "'1e999' is too large a number"},
    {with("\"log\": {\"file\": \"a\nb\"}"), 2, 17, "/log/file", "not closed on its line"},
    {with("\"log\": {\"file\": \"a\tb\"}"), 2, 19, "/log/file", "control character"},
    {with("\"log\": {\"file\": \"C:\\dir\"}"), 2, 20, "/log/file",
     R"('\d' begins no escape of JSON; a backslash is written \\)"},
    {with("\"log\": {\"file\": \"\\u12G4\"}"), 2, 18, "/log/file", "begins no escape"},
    {with("\"log\": {\"file\": \"\\uD800\"}"), 2, 18, "/log/file", "begins no escape"},
    {with("\"log\": {\"file\": \"\\uD83D\\uDE00 \\uDE00\"}"), 2, 31, "/log/file", "begins no escape"},
    {std::string(33, '['), 1, 33, "/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0",
     "more than 32 deep"},
    {std::string(1'000'000, '['), 1, 33, "", "more than 32 deep"},

    // The version.
    {"{\"version\": 1.0}", 1, 13, "/version", "the version is written 1, not the number 1.0"},
    {"{\"version\": \"1\"}", 1, 13, "/version", "the version is written 1, not the string \"1\""},
    {"{\"version\": 2}", 1, 13, "/version", "version 2 is not known; this curb reads version 1"},
    {"{\"version\": -1}", 1, 13, "/version", "version -1 is not known"},
    {"{\"version\": 18446744073709551617}", 1, 13, "/version", "version 18446744073709551617 is not known"},
    {"{\"version\": 1e0}", 1, 13, "/version", "the version is written 1"},
    {"{\"version\": null}", 1, 13, "/version", "not null"},
    {"{\"version\": {}}", 1, 13, "/version", "not an object"},

    // Keys.
    {with("\"relese\": {}"), 2, 1, "/relese", R"(unknown key "relese"; did you mean "release"?)"},
    {with("\"Gpu\": {}"), 2, 1, "/Gpu", R"(did you mean "gpu"?)"},
    {with("\"growth\": {}"), 2, 1, "/growth", R"(unknown key "growth"; known here: "$schema", "version", "gpu")"},
    {with("\"cap\": \"8GiB\""), 2, 1, "/cap", R"(unknown key "cap"; did you mean /gpu/*/cap?)"},
    {with("\"gpu\": {\"cap\": \"8GiB\"}"), 2, 9, "/gpu/cap", R"("cap" is not a device; did you mean /gpu/*/cap?)"},
    {with("\"gpu\": {\"*\": {\"cpa\": \"8GiB\"}}"), 2, 15, "/gpu/*/cpa", R"(did you mean "cap"?)"},
    {with("\"gpu\": {\"*\": {\"growth\": {}}}"), 2, 15, "/gpu/*/growth",
     R"(unknown key "growth"; known here: "cap", "report")"},
    {with("\"log\": {\"lvl\": \"info\"}"), 2, 9, "/log/lvl", R"(did you mean "level"?)"},
    {with("\"a/b~c\": 1"), 2, 1, "/a~1b~0c", R"(unknown key "a/b~c")"},
    {with("\"gpu/*/cap\": \"8GiB\""), 2, 1, "/gpu~1*~1cap", "unknown key"},
    {with("\"\": 1"), 2, 1, "/", R"(unknown key "")"},
    {with("\"a\\nb\": 1"), 2, 1, "/a\nb", R"(unknown key "a\x0Ab")"},
    {with("\"log\": {},\n\"log\": {}"), 3, 1, "/log", "the key \"log\" stands twice; first at 2:1"},
    {"{\"version\": 1, \"version\": 1}", 1, 16, "/version", "stands twice; first at 1:2"},
    {with("\"gpu\": {\"cuda:0\": {}, \"\\u0063uda:0\": {}}"), 2, 23, "/gpu/cuda:0", "stands twice"},

    // Devices.
    {with("\"gpu\": []"), 2, 8, "/gpu", "\"gpu\" is an object, not an array"},
    {with("\"gpu\": null"), 2, 8, "/gpu", "not null"},
    {with("\"gpu\": {\"cuda:00\": {}}"), 2, 9, "/gpu/cuda:00", R"(did you mean "cuda:0"?)"},
    {with("\"gpu\": {\"cuda:-1\": {}}"), 2, 9, "/gpu/cuda:-1", R"("cuda:-1" is not a device; the keys are "*")"},
    {with("\"gpu\": {\"nvml: 0\": {}}"), 2, 9, "/gpu/nvml: 0", R"(did you mean "nvml:0"?)"},
    {with("\"gpu\": {\"gpu:0\": {}}"), 2, 9, "/gpu/gpu:0", R"(did you mean "cuda:0"?)"},
    {with("\"gpu\": {\"3b:00\": {}}"), 2, 9, "/gpu/3b:00", R"(did you mean "0000:3b:00.0"?)"},
    {with("\"gpu\": {\"GPU-8g\": {}}"), 2, 9, "/gpu/GPU-8g", R"(after "GPU-8" a hexadecimal digit is expected)"},
    {with("\"gpu\": {\"GPU-\": {}}"), 2, 9, "/gpu/GPU-", "as nvidia-smi -L prints it"},
    {with("\"gpu\": {\"a/b\": {}}"), 2, 9, "/gpu/a~1b", R"("a/b" is not a device; the keys are "*")"},
    {with("\"gpu\": {\"report\": \"cap\"}"), 2, 9, "/gpu/report",
     R"("report" is not a device; did you mean /gpu/*/report?)"},
    {with("\"gpu\": {\"0000:3b:00.0\": {},\n\"3B:00.0\": {}}"), 3, 1, "/gpu/3B:00.0",
     R"("3B:00.0" is the device that "0000:3b:00.0" names at 2:9; put what both say in one)"},
    {with("\"gpu\": {\"GPU-8f3a\": {}, \"GPU-8F3A\": {}}"), 2, 25, "/gpu/GPU-8F3A",
     R"("GPU-8F3A" is the device that "GPU-8f3a" names at 2:9)"},
    {with("\"gpu\": {\"MIG-8f3a1b2c\": {}, \"MIG-8f3a1b2c-\": {}}"), 2, 29, "/gpu/MIG-8f3a1b2c-",
     R"(is the device that "MIG-8f3a1b2c" names at 2:9)"},
    {with("\"gpu\": {\"3b:00.0\": {}, \"3b:00.0\": {}}"), 2, 24, "/gpu/3b:00.0", "stands twice; first at 2:9"},

    // Reports.
    {with("\"gpu\": {\"*\": {\"report\": \"devise\"}}"), 2, 25, "/gpu/*/report",
     R"('devise' is not a kind of report; did you mean "device"?)"},
    {with("\"gpu\": {\"*\": {\"report\": true}}"), 2, 25, "/gpu/*/report",
     R"(what is reported is "cap" or "device", not true)"},
    {with("\"gpu\": {\"*\": {\"raport\": \"cap\"}}"), 2, 15, "/gpu/*/raport", R"(did you mean "report"?)"},
    {with("\"report\": \"device\""), 2, 1, "/report", R"(did you mean /gpu/*/report?)"},
    {with("\"gpu\": {\"*\": \"8GiB\"}"), 2, 14, "/gpu/*", R"(as in { "cap": "8GiB" }, not the string "8GiB")"},

    // Sizes.
    {with("\"gpu\": {\"*\": {\"cap\": \"8Gib\"}}"), 2, 22, "/gpu/*/cap",
     R"('8Gib' is not a size; did you mean "8GiB"?)"},
    {with("\"gpu\": {\"*\": {\"cap\": -1}}"), 2, 22, "/gpu/*/cap", "-1: sizes are not negative"},
    {with("\"gpu\": {\"*\": {\"cap\": \"-1\"}}"), 2, 22, "/gpu/*/cap", "-1: sizes are not negative"},
    {with("\"gpu\": {\"*\": {\"cap\": 8}}"), 2, 22, "/gpu/*/cap", "a size is a string with a unit"},
    {with("\"gpu\": {\"*\": {\"cap\": 99999999999999999999999}}"), 2, 22, "/gpu/*/cap",
     "not the number 99999999999999999999999"},
    {with("\"gpu\": {\"*\": {\"cap\": null}}"), 2, 22, "/gpu/*/cap", "not null"},
    {with("\"gpu\": {\"*\": {\"cap\": \"\"}}"), 2, 22, "/gpu/*/cap", "the size is empty"},
    {with("\"gpu\": {\"*\": {\"cap\": \"120%\"}}"), 2, 22, "/gpu/*/cap", "more than the device has"},
    {with("\"gpu\": {\"*\": {\"cap\": \"99999999999TiB\"}}"), 2, 22, "/gpu/*/cap", "too large"},

    // The release and the log.
    {with("\"release\": \"SIGUSR1\""), 2, 12, "/release", "\"release\" is an object"},
    {with("\"release\": {\"signal\": 10}"), 2, 23, "/release/signal",
     R"(as in "SIGUSR1" or "none", not the number 10)"},
    {with("\"release\": {\"signal\": \"SIGKILL\"}"), 2, 23, "/release/signal", "cannot ask for a release"},
    {with("\"release\": {\"signal\": \"USR1\"}"), 2, 23, "/release/signal", R"(did you mean "SIGUSR1"?)"},
    {with("\"release\": {\"steps\": \"pools\"}"), 2, 22, "/release/steps", "an array of names"},
    {with("\"release\": {\"steps\": [\"pools\", \"pool\"]}"), 2, 32, "/release/steps/1", R"(did you mean "pools"?)"},
    {with("\"release\": {\"steps\": [\"cache\"]}"), 2, 23, "/release/steps/0", R"(write one of "pools", "frameworks")"},
    {with("\"release\": {\"steps\": [\"pools\", \"pools\"]}"), 2, 32, "/release/steps/1", "twice"},
    {with("\"release\": {\"steps\": [[\"pools\"]]}"), 2, 23, "/release/steps/0", "a step is a name, not an array"},
    {with("\"log\": {\"level\": \"warn\"}"), 2, 18, "/log/level",
     R"('warn' is not a log level; did you mean "warning"?)"},
    {with("\"log\": {\"level\": 3}"), 2, 18, "/log/level", "a log level is a name"},
    {with("\"log\": {\"file\": {}}"), 2, 17, "/log/file", "a path is a string"},
    {with("\"log\": {\"file\": \"a\\u0000b\"}"), 2, 17, "/log/file", "a path holds no NUL"},
    {with("\"$schema\": 1"), 2, 12, "/$schema", "this is a string"},

    // Columns count bytes, a tab is one, and a carriage return ends no line.
    {"{\t\"version\":\t2}", 1, 14, "/version", "version 2"},
    {"{\"\xC3\xA4\": 1, \"version\": 1}", 1, 2, "/\xC3\xA4", "unknown key"},
    {"{/* \xC3\xA4 */\"version\": 2}", 1, 21, "/version", "version 2"},
    {"{\r\n\"version\": 2\r\n}", 2, 12, "/version", "version 2"},
    {"{ // a comment with \"quotes\", a , and a :\r  /* , : */ \"version\" /*:*/ : /*,*/ 2}", 1, 79, "/version",
     "version 2"},
};

}  // namespace

TEST_CASE("What is wrong with a file is said with its line, column, pointer and remedy") {
    REQUIRE(kBad.size() >= 60);
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
}

TEST_CASE("Every field is read") {
    policy::Policy expected;
    using Kind = policy::GpuKey::Kind;
    expected.gpu = {{{}, {policy::parse_size("8GiB").value(), {}}},
                    {{Kind::cuda, 0, {}}, {policy::parse_size("75%").value(), policy::Report::device}},
                    {{Kind::nvml, 1, {}}, {}},
                    {{Kind::pci, 0, "0000:3b:00.0"}, {}},
                    {{Kind::gpu_uuid, 0, "GPU-8f3a"}, {{}, policy::Report::cap}},
                    {{Kind::mig_uuid, 0, "MIG-1"}, {}}};
    expected.release = {35, {policy::Step::frameworks, policy::Step::pools}};
    expected.log = {policy::LogLevel::debug, "curb-\xC3\xA4-%p.log"};
    CHECK(valid(kWhole) == expected);
}

TEST_CASE("The least policy is the version, and then nothing is capped") {
    CHECK(valid(R"({"version": 1})") == policy::Policy{});
    CHECK(valid("//\n{/**/\"version\"/**/:/**/1/**/}//") == policy::Policy{});
    CHECK(valid(R"({"version": 1, "gpu": {}, "release": {}, "log": {}})") == policy::Policy{});
    CHECK(valid(R"({"version": 1, "release": {"signal": "none", "steps": []}})").release ==
          policy::ReleasePolicy{0, {}});
}

TEST_CASE("The default that the table of fields states is what leaving the field out means") {
    for (const policy::Field &field : policy::kFields) {
        if (field.fallback.empty()) continue;
        std::string text = "{\"version\": 1";
        std::string closing = "}";
        std::string_view rest = field.pointer.substr(1);
        text += ", ";
        for (std::size_t slash = rest.find('/'); slash != std::string_view::npos; slash = rest.find('/')) {
            text += "\"" + std::string(rest.substr(0, slash)) + "\": {";
            closing += "}";
            rest.remove_prefix(slash + 1);
        }
        text += "\"" + std::string(rest) + "\": " + std::string(field.fallback) + closing;
        INFO(text);
        policy::Policy policy = valid(text);
        const policy::GpuIdentity gpu;
        CHECK(gpu_policy_for(policy, gpu) == gpu_policy_for(policy::Policy{}, gpu));
        policy.gpu.clear();
        CHECK(policy == policy::Policy{});
    }
}

TEST_CASE("All errors of a file are found, in the order of its text") {
    const Diagnostics found = errors(R"({
  "version": 2,
  "gpu": { "*": { "cap": "8Gib", "kap": 1 }, "nvml0": { "cap": -1 } },
  "release": { "steps": ["pool", 3], "signal": "USR1" },
  "log": { "level": "loud", "level": "quiet" },
  "rules": []
})");
    std::vector<std::string> places;
    for (const Diagnostic &diagnostic : found) {
        places.push_back(std::to_string(diagnostic.line) + ":" + std::to_string(diagnostic.column) +
                         diagnostic.pointer);
    }
    CHECK(places == std::vector<std::string>{"2:14/version", "3:26/gpu/*/cap", "3:34/gpu/*/kap", "3:46/gpu/nvml0",
                                             "3:64/gpu/nvml0/cap", "4:26/release/steps/0", "4:34/release/steps/1",
                                             "4:48/release/signal", "5:21/log/level", "5:29/log/level",
                                             "5:38/log/level", "6:3/rules"});
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
        CHECK(valid(*text) != policy::Policy{});
        ++examples;
    }
    CHECK(examples >= 3);
}

TEST_CASE("Places are right whatever blanks and comments stand between the tokens") {
    const std::vector<std::string> tokens{"{",
                                          "\"log\"",
                                          ":",
                                          "{",
                                          "\"fi\\u006ce\"",
                                          ":",
                                          "\"a\\\"/*\\\\\"",
                                          "}",
                                          ",",
                                          "\"x\"",
                                          ":",
                                          "[",
                                          "-1.5e+3",
                                          ",",
                                          "null",
                                          ",",
                                          "true",
                                          "]",
                                          ",",
                                          "\"version\"",
                                          ":",
                                          "WRONG",
                                          ",",
                                          "\"release\"",
                                          ":",
                                          "{",
                                          "}",
                                          "}"};
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

// Whatever is read, the answer is a policy or at least one diagnostic with a place inside the text.
void check_answer(const std::string &text) {
    const auto policy = parse(text, "job.json");
    if (policy) return;
    const auto lines = static_cast<unsigned>(std::count(text.begin(), text.end(), '\n') + 1);
    bool sound = !policy.error().empty();
    std::pair last(0U, 0U);
    for (const Diagnostic &diagnostic : policy.error()) {
        const std::pair place(diagnostic.line, diagnostic.column);
        sound = sound && diagnostic.line >= 1 && diagnostic.line <= lines && diagnostic.column >= 1 &&
                diagnostic.column <= text.size() + 1 && !diagnostic.message.empty() && place >= last &&
                diagnostic.text().find('\n') == std::string::npos;
        last = place;
    }
    if (sound) return;  // Catch2's assertions are slow for so many rounds
    INFO(text);
    FAIL("an answer without a sound diagnostic");
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

TEST_CASE("A file full of errors has all of them told") {
    std::string text = "{\"version\": 1";
    for (int i = 0; i < 20'000; ++i) text += ",\n\"key" + std::to_string(i) + "\": [[[1]]]";
    CHECK(errors(text + "}").size() == 20'000);
}

TEST_CASE("For programs, diagnostics are JSON") {
    CHECK(config::to_json({}) == R"({"valid":true,"diagnostics":[]})");
    CHECK(config::to_json({{"a\"\xFF.json", 4, 14, "/gpu/*/cap", "no"}}) ==
          "{\"valid\":false,\"diagnostics\":[{\"file\":\"a\\\"\xEF\xBF\xBD.json\",\"line\":4,\"column\":14,"
          "\"pointer\":\"/gpu/*/cap\",\"message\":\"no\"}]}");
}
