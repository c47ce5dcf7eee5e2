// Policy files: one with every field, and one for each mistake with its error. The @ in a text marks the place of the
// mistake and is not in the file. Wrong texts of sizes, times, devices and signals stand in size_test, duration_test,
// gpu_test and policy_test; every_field_test gives each field values of the wrong type.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "config/load.hpp"

// Returns the errors of a policy, which must have some.
inline curb::config::Diagnostics errors(const std::string &text) {
    const auto policy = curb::config::parse(text, "job.json");
    INFO(text.substr(0, 400));
    REQUIRE_FALSE(policy);
    return policy.error();
}

struct Bad {
    Bad(std::string marked, std::string of, std::string part)
        : text(std::move(marked)), pointer(std::move(of)), fragment(std::move(part)) {
        const std::size_t at = text.find('@');
        text.erase(at, 1);
        for (const char c : text.substr(0, at)) {
            column = c == '\n' ? 1 : column + 1;
            line += c == '\n' ? 1 : 0;
        }
    }
    std::string text;
    unsigned line = 1;
    unsigned column = 1;
    std::string pointer;
    std::string fragment;  // of the message
};

// Files that are valid but for these members: of the file, of "*", of its growth, of a rule, of the match of a rule.
inline std::string with(const std::string &members) { return "{\"version\": 1,\n" + members + "}"; }
inline std::string gpu(const std::string &members) { return with(R"("gpu": {"*": {)" + members + "}}"); }
inline std::string growth(const std::string &members) { return gpu(R"("growth": {)" + members + "}"); }
inline std::string rule(const std::string &members) { return with(R"("rules": [{"match": {}, )" + members + "}]"); }
inline std::string match(const std::string &members) { return with(R"("rules": [{"match": {)" + members + "}}]"); }
inline std::string env(const std::string &members) { return with(R"("frameworks": {"env": {)" + members + "}}"); }
inline std::string every(const std::string &time) {
    return growth(R"("start": "1GiB", "step": "1GiB", "every": )" + time);
}
inline std::string factor(const std::string &factor) { return growth(R"("start": "1GiB", "factor": )" + factor); }

// A policy with every field, and comments in all places.
inline const std::string kWhole = R"(// a policy
{
  "$schema": "./policy.schema.json", /* for editors */
  "version": 1,
  "gpu": {
    "*": { "cap": "8GiB", // every device
           "growth": { "start": "2GiB", "step": "512MiB", "every": "10s", "keep_free": "4GiB", "wait": "30s" },
           "cache": { "max": "1GiB", "idle": "1m" } },
    "cuda:0": { "cap": "75%", "job_cap": "90%", "growth": { "factor": 1.5 }, "report": "device" },
    "nvml:1": {}, "3B:00.0": { "cap": "1GiB", "growth": { "start": "1GiB" } }, "GPU-8F3a": { "report": "cap" }, "MIG-1": {}
  },
  "job": { "cap": "16GiB", "of": "user" },
  "share": "order",
  "suspend": { "idle": "10m", "when_others_wait": "5s", "light": false, "deep": "never", "host_memory": "64GiB" },
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

inline const std::vector<Bad> kBad = {
    // The file as a whole.
    {"@", "", "the file is empty"},
    {" \n\t\n@", "", "the file is empty"},
    {"// nothing\n@", "", "comments only"},
    {"/* nothing */@", "", "comments only"},
    {"@/* nothing", "", "comment that begins here is not closed"},
    {"@\xEF\xBB\xBF{\"version\": 1}", "", "byte order mark"},
    {"@" + std::string("\xFF\xFE{\0", 4), "", "UTF-16"},
    {std::string("{\"version\": 1}\n@\0garbage", 24), "", "NUL"},
    {std::string("{\"version\"@\0: 1}", 16), "", "NUL"},
    {"{\"version\": 1, \"log\": {\"file\": \"@\xC3\"}}", "", "not UTF-8"},
    {"{\"version\": 1} // @\xC0\xAF", "", "not UTF-8"},          // overlong
    {"{\"version\": 1} // @\xED\xA0\x80", "", "not UTF-8"},      // surrogate
    {"{\"version\": 1} // @\xF4\x90\x80\x80", "", "not UTF-8"},  // beyond U+10FFFF
    {"{\"version\": 1} // @\xE2\x82", "", "not UTF-8"},          // cut off
    {"@[]", "", R"(a policy is an object, as in { "version": 1 }, not an array)"},
    {"@null", "", "not null"},
    {"  @42", "", "not the number 42"},
    {"@\"8GiB\"", "", "not the string \"8GiB\""},
    {"\n  @{\"log\": {}}", "", R"(the version is missing; add "version": 1)"},

    // Not JSON.
    {"{@", "", "the object that begins at 1:1 is not closed"},
    {"{\"version\": 1@", "", "the object that begins at 1:1 is not closed"},
    {"{\"version\": 1,@", "", "the object that begins at 1:1 is not closed"},
    {"{\"version\":@", "/version", "the object that begins at 1:1 is not closed"},
    {"{\"version\"@", "", "the object that begins at 1:1 is not closed"},
    {"{@\"version", "", "the string that begins here is not closed"},
    {"{\n\"release\": {\n  \"steps\": [\"pools\"@", "/release/steps", "array that begins at 3:12 is not closed"},
    {"{\"version\": 1@,}", "", "nothing follows this ','; take it out"},
    {with("\"release\": {\"steps\": [\"pools\" @, ]}"), "/release/steps", "nothing follows this ','"},
    {"{\"version\": 1,@,}", "", "',' stands where a key in double quotes is expected"},
    {"{\"version\": 1}@}", "", "'}' follows the end"},
    {"{\"version\": 1}\n@{\"version\": 1}", "", "'{' follows the end"},
    {"{\"version\": 1} @/* x", "", "comment that begins here is not closed"},
    {"{\"version\": @/* x }", "/version", "comment that begins here is not closed"},
    {"{\"version\": 1 @/ 2}", "", "is missing before '/'"},
    {"{\"version\": 1 @\"gpu\": {}}", "", "a ',' or '}' is missing before \"gpu\""},
    {"{\"version\" @1}", "", "a ':' is missing after the key \"version\""},
    {"{@'version': 1}", "", "'version' stands where a key in double quotes is expected"},
    {"{@1: 1}", "", "'1' stands where a key"},
    {"{\"version\": @: 1}", "/version", "a value is missing before ':'"},
    {with("\"release\": {\"steps\": [@,]}"), "/release/steps", "a value is missing before ','"},
    {with("\"release\": {\"steps\": [\"pools\"@}}"), "/release/steps", "a ',' or ']' is missing before '}'"},
    {"@version: 1\ngpu:\n", "", R"(this looks like YAML; a policy is JSON, as { "version": 1 } is)"},
    {"@---\nversion: 1\n", "", "this looks like YAML"},
    {"@version = 1\n", "", "this looks like TOML"},
    {"@# a policy\n{\"version\": 1}", "", "'#' begins no comment here; comments are //"},
    {"{\"version\": 1 @# one\n}", "", "'#' begins no comment here"},
    {"{\"version\": 1,\n@# none\n}", "", "'#' begins no comment here"},
    {"{\"version\": @# one\n1}", "/version", "'#' begins no comment here"},
    {"{\"version\": @True}", "/version", "'True' is not a value of JSON"},
    {"{\"version\": @'x'}", "/version", "strings stand in double quotes"},
    {"{\"version\": @nullx}", "", "'nullx' is not a value of JSON"},
    {"{\"version\": @01}", "", "'01' is not a number"},
    {"{\"version\": @+1}", "/version", "'+1' is not a number"},
    {"{\"version\": @.5}", "/version", "'.5' is not a number"},
    {"{\"version\": @1.}", "/version", "'1.' is not a number"},
    {"{\"version\": @0x1}", "", "'0x1' is not a number"},
    {"{\"version\": @-}", "/version", "'-' is not a number"},
    {"{\"version\": @1e999}", "/version", "'1e999' is too large a number"},
    {with("\"log\": {\"file\": @\"a\nb\"}"), "/log/file", "not closed on its line"},
    {with("\"log\": {\"file\": \"a@\tb\"}"), "/log/file", "control character"},
    {with(R"("log": {"file": "C:@\dir"})"), "/log/file", R"('\d' begins no escape of JSON; a backslash is written \\)"},
    {with(R"("log": {"file": "@\u12G4"})"), "/log/file", "begins no escape"},
    {with(R"("log": {"file": "@\uD800"})"), "/log/file", "begins no escape"},
    {with(R"("log": {"file": "\uD83D\uDE00 @\uDE00"})"), "/log/file", "begins no escape"},
    {std::string(32, '[') + "@[", "/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0",
     "more than 32 deep"},
    {std::string(32, '[') + "@" + std::string(1'000'000, '['), "", "more than 32 deep"},

    // The version.
    {"{\"version\": @1.0}", "/version", "the version is written 1, not the number 1.0"},
    {"{\"version\": @2}", "/version", "version 2 is not known; this curb reads version 1"},
    {"{\"version\": @-1}", "/version", "version -1 is not known"},
    {"{\"version\": @18446744073709551617}", "/version", "version 18446744073709551617 is not known"},

    // Keys.
    {with("@\"relese\": {}"), "/relese", R"(unknown key "relese"; did you mean "release"?)"},
    {with("@\"Gpu\": {}"), "/Gpu", R"(did you mean "gpu"?)"},
    {with("@\"colour\": {}"), "/colour",
     R"(unknown key "colour"; known here: "$schema", "version", "gpu", "job", "environment", "share", "release", "suspend", "frameworks", "log", "trace", "rules")"},
    {with("@\"cap\": \"8GiB\""), "/cap", R"(unknown key "cap"; did you mean /gpu/*/cap?)"},
    {with("\"gpu\": {@\"cap\": \"8GiB\"}"), "/gpu/cap", R"("cap" is not a device; did you mean /gpu/*/cap?)"},
    {with("\"gpu\": {@\"a/b\": {}}"), "/gpu/a~1b", R"("a/b" is not a device; the keys are "*")"},
    {gpu("@\"cpa\": \"8GiB\""), "/gpu/*/cpa", R"(did you mean "cap"?)"},
    {gpu("@\"colour\": {}"), "/gpu/*/colour", R"(known here: "cap", "job_cap", "growth", "cache", "report")"},
    {growth(R"(@"max": "1GiB")"), "/gpu/*/growth/max", R"(unknown key "max"; did you mean /gpu/*/cache/max?)"},
    {rule(R"(@"cap": "1GiB")"), "/rules/0/cap", R"(did you mean /rules/*/gpu/*/cap?)"},
    {rule(R"(@"colour": "x")"), "/rules/0/colour",
     R"(known here: "name", "match", "gpu", "job", "environment", "share", "release", "suspend", "frameworks", "log", "trace")"},
    {rule(R"(@"version": 1)"), "/rules/0/version",
     R"("version" is for the file as a whole and cannot stand in a rule; take it out here)"},
    {rule(R"(@"rules": [])"), "/rules/0/rules", R"("rules" is for the file as a whole)"},
    {rule(R"("gpu": {@"cap": "1GiB"})"), "/rules/0/gpu/cap",
     R"("cap" is not a device; did you mean /rules/*/gpu/*/cap?)"},
    {match(R"(@"arg": "x")"), "/rules/0/match/arg", R"(unknown key "arg"; did you mean "args"?)"},
    {with(R"(@"match": {})"), "/match", R"(did you mean /rules/*/match?)"},
    {with("@\"a/b~c\": 1"), "/a~1b~0c", R"(unknown key "a/b~c")"},
    {with("@\"\": 1"), "/", R"(unknown key "")"},
    {with("@\"a\\nb\": 1"), "/a\nb", R"(unknown key "a\x0Ab")"},
    {with("\"log\": {},\n@\"log\": {}"), "/log", "the key \"log\" stands twice; first at 2:1"},
    {with(R"("gpu": {"cuda:0": {}, @"\u0063uda:0": {}})"), "/gpu/cuda:0", "stands twice"},
    {rule(R"(@"match": {})"), "/rules/0/match", R"(stands twice; first at 2:12)"},
    {env("\"A\": \"x\",\n@\"A\": \"y\""), "/frameworks/env/A", R"(the key "A" stands twice; first at 2:24)"},

    // Devices and their names.
    {with("\"gpu\": @null"), "/gpu", "\"gpu\" is an object, not null"},
    {with(R"("gpu": {@"cuda:00": {}})"), "/gpu/cuda:00", R"(did you mean "cuda:0"?)"},
    {with("\"gpu\": {\"*\": @\"8GiB\"}"), "/gpu/*", R"(as in { "cap": "8GiB" }, not the string "8GiB")"},
    {with("\"gpu\": {\"0000:3b:00.0\": {},\n@\"3B:00.0\": {}}"), "/gpu/3B:00.0",
     R"("3B:00.0" is the device that "0000:3b:00.0" names at 2:9; put what both say in one)"},
    {with(R"("gpu": {"MIG-8f3a1b2c": {}, @"MIG-8f3a1b2c-": {}})"), "/gpu/MIG-8f3a1b2c-",
     R"(is the device that "MIG-8f3a1b2c" names at 2:9)"},
    {rule(R"("gpu": {"GPU-8f3a": {}, @"GPU-8F3A": {}})"), "/rules/0/gpu/GPU-8F3A",
     R"(is the device that "GPU-8f3a" names at 2:33)"},
    {rule(R"("gpu": {@"cuda0": {}})"), "/rules/0/gpu/cuda0", R"(did you mean "cuda:0"?)"},

    // Sizes, times and factors.
    {gpu(R"("cap": @"8Gib")"), "/gpu/*/cap", R"('8Gib' is not a size; did you mean "8GiB"?)"},
    {gpu(R"("cap": @-1)"), "/gpu/*/cap", "-1: sizes are not negative"},
    {gpu(R"("cap": @8)"), "/gpu/*/cap", R"(a size is a string with a unit, as in "8GiB" or "75%")"},
    {gpu(R"("cap": @99999999999999999999999)"), "/gpu/*/cap", "not the number 99999999999999999999999"},
    {gpu(R"("cap": @1e400)"), "/gpu/*/cap", "'1e400' is too large a number"},
    {growth(R"("start": @"0%", "step": "1GiB")"), "/gpu/*/growth/start", "'0%' is too little; the least is 1B"},
    {growth(R"("keep_free": @"110%")"), "/gpu/*/growth/keep_free", "more than the device has"},
    {factor("@1.009"), "/gpu/*/growth/factor", "1.009 is too little; the least is 1.01"},
    {factor("@-2"), "/gpu/*/growth/factor", "-2 is too little; the least is 1.01"},
    {factor("@1e-400"), "/gpu/*/growth/factor", "1e-400 is too little; the least is 1.01"},
    {factor("@100.5"), "/gpu/*/growth/factor", "100.5 is too large a factor; the largest is 100"},
    {factor("@1e400"), "/gpu/*/growth/factor", "'1e400' is too large a number"},
    {factor("@\"1.5\""), "/gpu/*/growth/factor",
     R"(a factor is a number, as in 1.5, not the string "1.5"; did you mean 1.5?)"},
    {factor("@\"2.\""), "/gpu/*/growth/factor", "did you mean 2?"},
    {every("@30"), "/gpu/*/growth/every", R"(a time is a string with a unit, not the number 30; write "30s")"},
    {every("@\"30\""), "/gpu/*/growth/every", R"('30' has no unit; did you mean "30s"?)"},
    {every("@-1"), "/gpu/*/growth/every", "-1: times are not negative"},
    {every("@1.5"), "/gpu/*/growth/every", R"(a time is a string with a unit, as in "30s", not the number 1.5)"},
    {with(R"("suspend": {"deep": @"Never"})"), "/suspend/deep",
     R"('Never' is not a time; write a whole number and a unit, as in "30s", or "never")"},
    {every("@99999999999999"), "/gpu/*/growth/every", R"(as in "30s", not the number 99999999999999)"},
    {gpu(R"("cache": {"idle": @"0s"})"), "/gpu/*/cache/idle", "'0s' is too little; the least is 1ms"},

    // The other types.
    {with(R"("share": @"non")"), "/share", R"('non' is not a kind of share; did you mean "none"?)"},
    {with(R"("job": {"of": @"usr"})"), "/job/of", R"('usr' is not a kind of job; did you mean "user"?)"},
    {gpu(R"("report": @"devise")"), "/gpu/*/report", R"('devise' is not a kind of report; did you mean "device"?)"},
    {with(R"("release": {"signal": @10})"), "/release/signal", R"(as in "SIGUSR1" or "none", not the number 10)"},
    {with(R"("release": {"signal": @"USR1"})"), "/release/signal", R"(did you mean "SIGUSR1"?)"},
    {with(R"("release": {"steps": @"pools"})"), "/release/steps", "an array of names"},
    {with(R"("release": {"steps": ["pools", @"pool"]})"), "/release/steps/1", R"(did you mean "pools"?)"},
    {with(R"("release": {"steps": [@"everything"]})"), "/release/steps/0", R"(write one of "cache", )"},
    {with(R"("release": {"steps": ["cache", "pressure", @"cache"]})"), "/release/steps/2",
     R"(the step "cache" stands here twice)"},
    {with(R"("release": {"steps": [@["pools"]]})"), "/release/steps/0", "a step is a name, not an array"},
    {with(R"("release": {"before_growth": @"False"})"), "/release/before_growth", "did you mean false?"},
    {with(R"("release": {"collect": @1})"), "/release/collect",
     R"(this is true or false, not the number 1; did you mean true?)"},
    {with(R"("frameworks": {"steer": @0})"), "/frameworks/steer", "did you mean false?"},
    {with(R"("frameworks": {"steer": @"maybe"})"), "/frameworks/steer", R"(true or false, not the string "maybe")"},
    {with(R"("log": {"level": @"warn"})"), "/log/level", R"('warn' is not a log level; did you mean "warning"?)"},
    {with(R"("log": {"file": @"a\u0000b"})"), "/log/file", "a path holds no NUL"},
    {with(R"("trace": {"file": @1})"), "/trace/file", "a path is a string"},
    {with("\"$schema\": @1"), "/$schema", "this is a string"},

    // Environments.
    {with(R"("frameworks": {"env": @["A=1"]})"), "/frameworks/env",
     R"(the variables are an object, as in { "NAME": "value" }, not an array)"},
    {env(R"("A": @1)"), "/frameworks/env/A", "the value of a variable is a string, not the number 1"},
    {env(R"("A": @"a\u0000b")"), "/frameworks/env/A", "the value of a variable holds no NUL"},
    {env(R"(@"": "x")"), "/frameworks/env/", R"("" is not the name of an environment variable)"},
    {env(R"(@"1A": "x")"), "/frameworks/env/1A", R"("1A" is not the name of an environment variable)"},
    {env(R"(@"A=B": "x")"), "/frameworks/env/A=B", "letters, digits and '_', no digit first"},
    {env(R"(@"LD_PRELOAD": "x.so")"), "/frameworks/env/LD_PRELOAD", R"("LD_PRELOAD" cannot be set here)"},
    {env(R"(@"LD_LIBRARY_PATH": "/x")"), "/frameworks/env/LD_LIBRARY_PATH",
     "what is loaded before main, curb itself too"},
    {env(R"(@"CURB_CAP": "8GiB")"), "/frameworks/env/CURB_CAP", "variables that begin with CURB_ decide"},

    // Rules.
    {with(R"("rules": @{})"), "/rules", "the rules are an array"},
    {with(R"("rules": [{"match": {}}, @[]])"), "/rules/1",
     R"(a rule is an object, as in { "match": { "exe": "python3*" } }, not an array)"},
    {with("\"rules\": [{\"match\": {}},\n @{}]"), "/rules/1",
     R"(does not say which processes it is for; add "match", {} for all of them)"},
    {rule(R"("name": @"a\nb")"), "/rules/0/name", "a name stands on one line"},
    {with(R"("rules": [{"match": @"python"}])"), "/rules/0/match", R"("match" is an object, not the string "python")"},
    {match(R"("exe": @["a", "b"])"), "/rules/0/match/exe", R"(a pattern is a string, as in "python3*", not an array)"},
    {match(R"("args": @"a\u0000")"), "/rules/0/match/args", "a pattern holds no NUL"},
    {match(R"("env": @"A=1")"), "/rules/0/match/env", R"(as in { "NAME": "bert*" }, not the string "A=1")"},
    {match(R"("env": {"A": @1})"), "/rules/0/match/env/A", "a pattern is a string, not the number 1"},
    {match(R"("env": {@"A-B": "x"})"), "/rules/0/match/env/A-B", "is not the name of an environment variable"},
    {rule(R"("frameworks": {"env": {@"LD_AUDIT": "x"}})"), "/rules/0/frameworks/env/LD_AUDIT", "cannot be set here"},

    // Fields that contradict each other.
    {growth("\"start\": \"1GiB\", \"step\": \"1GiB\",\n@\"factor\": 2"), "/gpu/*/growth/factor",
     R"("step" at 2:43 says already how the allowance grows; take out one of the two)"},
    {growth("\"factor\": 2, \"start\": \"1GiB\",\n@\"step\": \"1GiB\""), "/gpu/*/growth/step",
     R"("factor" at 2:26 says already how the allowance grows)"},
    {growth(R"("start": @"1GiB")"), "/gpu/*/growth/start", R"(the allowance would never grow; add "step" or "factor")"},
    {growth(R"("step": @"1GiB")"), "/gpu/*/growth/step", R"(no effect without "start")"},
    {gpu(R"("cap": "8GiB", "growth": {"start": @"9GiB", "step": "1GiB"})"), "/gpu/*/growth/start",
     "it begins above the cap: 9GiB is more than 8GiB"},
    {with(R"("gpu": {"*": {"growth": {"start": "9GiB", "step": "1GiB"}}, @"cuda:0": {"cap": "8GiB"}})"), "/gpu/cuda:0",
     "it begins above the cap"},
    {with(R"("gpu": {"*": {"cap": "8GiB"},
"3B:00.0": {"growth": {"start": @"9GiB", "step": "1GiB"}}})"),
     "/gpu/3B:00.0/growth/start", "it begins above the cap"},
    {with(R"("gpu": {"*": {"cap": "8GiB"}},
"rules": [{"name": "big", "match": {}, "gpu": {"*": {"growth": {"start": @"9GiB", "step": "1GiB"}}}}])"),
     "/rules/0/gpu/*/growth/start", R"(with rule 1 "big" laid over: it begins above the cap: 9GiB is more than 8GiB)"},
    {with(R"("gpu": {"*": {"growth": {"start": @"2GiB", "step": "1GiB"}}},
"rules": [{"match": {}}, {"match": {}, "gpu": {"*": {"cap": "1GiB"}}}])"),
     "/gpu/*/growth/start", "with rule 2 laid over: it begins above the cap: 2GiB is more than 1GiB"},
    {with(R"("gpu": {"*": {"growth": {"start": "2GiB", "step": "1GiB"}}},
"rules": [{"match": {}, "gpu": {@"nvml:1": {"cap": "1GiB"}}}])"),
     "/rules/0/gpu/nvml:1", "with rule 1 laid over: it begins above the cap"},
    {with(R"("gpu": {@"nvml:1": {"cap": "1GiB"}},
"rules": [{"match": {}, "gpu": {"*": {"growth": {"start": "2GiB", "step": "1GiB"}}}}])"),
     "/gpu/nvml:1", "with rule 1 laid over: it begins above the cap"},

    // Columns count bytes, a tab is one, and a carriage return ends no line.
    {"{\t\"version\":\t@2}", "/version", "version 2"},
    {"{@\"\xC3\xA4\": 1, \"version\": 1}", "/\xC3\xA4", "unknown key"},
    {"{/* \xC3\xA4 */\"version\": @2}", "/version", "version 2"},
    {"{\r\n\"version\": @2\r\n}", "/version", "version 2"},
    {"{ // a comment with \"quotes\", a , and a :\r  /* , : */ \"version\" /*:*/ : /*,*/ @2}", "/version", "version 2"},
};
