// `curb policy`: its output for policy files and for commands.
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>

#include "ceiling.hpp"
#include "cli.hpp"

namespace {

// Returns the first line that begins with these words; empty if there is none.
std::string line_with(const std::string &text, const std::string &beginning) {
    for (const std::string &line : lines(text))
        if (line.starts_with(beginning)) return line;
    return {};
}

// Returns the same line, with one blank wherever there are several.
std::string words_of_line_with(const std::string &text, const std::string &beginning) {
    std::istringstream stream(line_with(text, beginning));
    std::string out;
    for (std::string word; stream >> word;) out += (out.empty() ? "" : " ") + word;
    return out;
}

// Returns the rest of the line that begins with `word`.
std::string behind(const std::string &text, const std::string &word) {
    const std::string line = line_with(text, word + " ");
    const std::size_t value = line.find_first_not_of(' ', word.size());
    return value == std::string::npos ? "" : line.substr(value);
}

Outcome under(const Ceiling &ceiling, const Words &words, std::map<std::string, std::string> environment = {}) {
    environment.emplace("CURB_LIBRARY", harmless_library());
    return start({joined({tested::kCurb}, words), environment, {}, {}, ceiling.prepare()});
}

std::string executable(const TempDir &dir, const std::string &name, const std::string &text) {
    const std::string file = dir.write(name, text);
    fs::permissions(file, fs::perms(0755));
    return file;
}

// Returns the place of `value` in `text`, as ":7:14".
std::string at(const std::string &text, const std::string &value) {
    const std::size_t offset = text.find(value);
    const std::string before = text.substr(0, offset);
    REQUIRE(offset != std::string::npos);
    return ":" + std::to_string(std::count(before.begin(), before.end(), '\n') + 1) + ":" +
           std::to_string(offset - (before.rfind('\n') + 1) + 1);  // npos + 1 is 0
}

// The fields of the table that have values.
const Words kFields{
#define CURB_GPU_FIELD(pointer, ...) pointer,
#define CURB_JOB_FIELD CURB_GPU_FIELD
#include "policy/fields.def"
};

const std::string kTwoRules = R"({
  "version": 1,
  "gpu": { "*": { "cap": "8GiB" } },
  "frameworks": { "env": { "A": "1" } },
  "rules": [
    { "name": "bert", "match": { "args": "*train_bert*" }, "gpu": { "*": { "cap": "20GiB" } } },
    { "match": { "exe": "true" }, "frameworks": { "steer": true, "env": { "B": "2" } } },
    { "match": { "env": { "JOB": "big*" } }, "gpu": { "cuda:0": { "cap": "30GiB" } } }
  ]
})";

}  // namespace

// ---- check ----

TEST_CASE("curb policy check says valid, or every error with its place") {
    const TempDir dir;
    const std::string good = dir.write("good.json", R"({"version": 1})");
    const std::string bad = dir.write("bad.json", "{\"version\": 2,\n\"relese\": {}}");
    const Outcome valid = curb({"policy", "check", good});
    CHECK(valid.status == 0);
    CHECK(valid.out == good + ": valid\n");
    CHECK(valid.err.empty());
    const Outcome invalid = curb({"policy", "check", bad});
    CHECK(invalid.status == 1);
    CHECK(invalid.out.empty());
    CHECK(lines(invalid.err).size() == 2);
    CHECK(last_line(invalid.err) == bad + ":2:1: /relese: unknown key \"relese\"; did you mean \"release\"?");
    const std::string odd = dir.write("odd.json", "{\"version\": 1,\n\"log\": {\"file\": \"~/curb.log\"}}");
    const Outcome doubted = curb({"policy", "check", odd});
    CHECK(doubted.status == 0);
    CHECK(doubted.out == odd + ": valid\n");
    CHECK_THAT(doubted.err, contains(odd + ":2:17: /log/file: warning: \"~/curb.log\" names a file in a folder '~'"));
}

TEST_CASE("- names standard input to curb policy check and show") {
    CHECK(start({{tested::kCurb, "policy", "check", "-"}, {}, "{\"version\": 1}", {}, {}}).status == 0);
    fails(start({{tested::kCurb, "policy", "check", "-"}, {}, "{}", {}, {}}),
          contains("<stdin>:1:1: the version is missing"));
    const Outcome shown =
        start({{tested::kCurb, "policy", "show", "-"}, {}, R"({"version": 1, "log": {"level": "off"}})", {}, {}});
    CHECK(words_of_line_with(shown.out, "  level ") == "level off <stdin>:1:33");
    for (const char *unreadable : {"<&-", "</"}) {
        const Outcome outcome = start({{"/bin/sh", "-c", tested::kCurb + " policy check - " + unreadable}});
        fails(outcome, contains("<stdin>: it cannot be read: "), 2);
    }
}

TEST_CASE("curb policy check takes several files, and the worst decides its status") {
    const TempDir dir;
    const std::string good = dir.write("good.json", R"({"version": 1})");
    const std::string bad = dir.write("bad.json", "{}");
    const std::string missing = (dir / "missing.json").string();
    CHECK(curb({"policy", "check", good, good}).status == 0);
    CHECK(curb({"policy", "check", bad, good}).status == 1);
    CHECK(curb({"policy", "check", dir.path().string()}).status == 2);
    const Outcome all = curb({"policy", "check", missing, good, bad});
    CHECK(all.status == 2);
    CHECK(all.out == good + ": valid\n");
    CHECK_THAT(all.err,
               contains(missing + ": there is no such file") && contains(bad + ":1:1: the version is missing"));
}

// ---- show ----

TEST_CASE("curb policy show prints every field, with the default of one that is left out") {
    const TempDir dir;
    const Outcome outcome = curb({"policy", "show", dir.write("job.json", R"({"version": 1})")});
    CHECK(outcome.status == 0);
    REQUIRE(kFields.size() >= 19);
    for (const std::string &pointer : kFields) {
        const bool of_device = pointer.starts_with("/gpu/*/");
        const std::size_t slash = of_device ? 6 : pointer.find('/', 1);
        INFO(pointer);
        if (slash == std::string::npos) {  // in no block
            CHECK(line_with(outcome.out, pointer.substr(1) + " ").ends_with("  default"));
            continue;
        }
        const std::string block = of_device ? "gpu \"*\"" : pointer.substr(1, slash - 1);
        const std::size_t begin = outcome.out.find("\n" + block + "\n");
        REQUIRE(begin != std::string::npos);
        const std::string line = line_with(outcome.out.substr(begin), "  " + pointer.substr(slash + 1) + " ");
        CHECK(line.ends_with("  default"));
    }
    CHECK(words_of_line_with(outcome.out, "  signal ") == "signal SIGUSR1 default");
    std::string steps;
#define CURB_STEP(name, ...) steps += (steps.empty() ? "" : ", ") + std::string(#name);
#include "policy/release_steps.def"
    CHECK(words_of_line_with(outcome.out, "  steps ") == "steps " + steps + " default");
    CHECK(words_of_line_with(outcome.out, "  cap ") == "cap - default");
    CHECK(words_of_line_with(outcome.out, "gpu ") == "gpu \"*\"");
}

TEST_CASE("curb policy show prints each value with its place in the file, in columns") {
    const TempDir dir;
    dir.write("job.json", "{\"version\": 1,\n\"gpu\": {\"*\": {\"cap\": \"8GiB\"}},\n\"log\": {\"file\": \"a b\"}}");
    Start show{{tested::kCurb, "policy", "show", "job.json"}, {}, {}, dir.path().string(), {}};
    const Outcome outcome = start(show);
    CHECK(words_of_line_with(outcome.out, "  cap ") == "cap 8GiB job.json:2:22");
    CHECK(words_of_line_with(outcome.out, "  file ") == "file \"a b\" job.json:3:17");
    const std::size_t column = line_with(outcome.out, "  cap ").find("job.json");
    CHECK(line_with(outcome.out, "  signal ").find("default") == column);
    CHECK(line_with(outcome.out, "  growth/keep_free ").find("default") == column);
}

TEST_CASE("curb policy show prints a block for each device key, with the values of less specific keys") {
    const TempDir dir;
    const Outcome outcome = curb({"policy", "show", dir.write("job.json", R"({"version": 1, "gpu": {
"*": {"cap": "8GiB", "growth": {"start": "1GiB", "step": "1GiB"}},
"GPU-8F": {"report": "device"},
"GPU-8f3a": {"growth": {"factor": 2}}}})")});
    const std::string &out = outcome.out;
    const std::size_t every = out.find("gpu \"*\"\n"), brief = out.find("gpu \"GPU-8f\"\n"),
                      whole = out.find("gpu \"GPU-8f3a\"\n"), release = out.find("release\n");
    REQUIRE(every < brief);
    REQUIRE(brief < whole);
    REQUIRE(whole < release);
    const std::string of_every = out.substr(every, brief - every), of_brief = out.substr(brief, whole - brief),
                      of_whole = out.substr(whole, release - whole);
    CHECK_THAT(line_with(of_every, "  report "), contains("cap") && contains("default"));
    CHECK_THAT(line_with(of_brief, "  report "), contains("device") && contains("job.json:3:22"));
    CHECK_THAT(line_with(of_whole, "  report "), contains("device") && contains("job.json:3:22"));
    CHECK_THAT(line_with(of_whole, "  cap "), contains("8GiB") && contains("job.json:2:14"));
    CHECK_THAT(line_with(of_brief, "  growth/step "), contains("1GiB"));
    // A factor takes the place of a step.
    CHECK_THAT(line_with(of_whole, "  growth/step "), contains("-") && contains("default"));
    CHECK_THAT(line_with(of_whole, "  growth/factor "), contains("2") && contains("job.json:4:35"));
}

TEST_CASE("curb policy show without a file prints the policy of this environment") {
    const TempDir dir;
    const std::string policy = dir.write("curb/policy.json", R"({"version": 1, "gpu": {"*": {"cap": "8GiB"}}})");
    const Outcome none = curb({"policy", "show"});
    CHECK(none.status == 0);
    CHECK_THAT(none.out, contains("policy   none: CURB_POLICY is not set"));
    CHECK_THAT(line_with(curb({"policy", "show"}, {{"CURB_POLICY", policy}}).out, "policy "), contains(policy));
    CHECK_THAT(line_with(curb({"policy", "show"}, {{"XDG_CONFIG_HOME", dir.path().string()}}).out, "policy "),
               contains(policy));
    const Outcome capped = curb({"policy", "show"}, {{"CURB_CAP", "4GiB"}});
    CHECK(words_of_line_with(capped.out, "  cap ") == "cap 4GiB CURB_CAP");
    const Outcome both = curb({"policy", "show"}, {{"CURB_POLICY", policy}, {"CURB_CAP", "4GiB"}});
    CHECK(words_of_line_with(both.out, "  cap ") == "cap 8GiB " + policy + ":1:37 at most 4GiB by CURB_CAP");
    // A file in the arguments replaces CURB_POLICY.
    CHECK_THAT(line_with(curb({"policy", "show", policy}, {{"CURB_POLICY", "/no/such.json"}}).out, "policy "),
               contains(policy));
}

TEST_CASE("curb policy show, explain and run --dry-run name the variable of each value in force") {
    const TempDir dir;
    const std::string file =
        dir.write("job.json", R"({"version": 1, "gpu": {"cuda:0": {"growth": {"keep_free": "1GiB"}}}})");
    const Environment environment{{"CURB_POLICY", file},    {"CURB_SIGNAL", "SIGUSR2"},
                                  {"CURB_JOB_CAP", "5GiB"}, {"NVIDIA_GPU_MEMORY_LIMIT", "8192"},
                                  {"CURB_WAIT", "30s"},     {"NVIDIA_GPU_MEMORY_REQUEST", "4096"}};
    for (const Words &words :
         {Words{"policy", "show"}, {"policy", "explain", "--", "true"}, {"run", "--dry-run", "--", "true"}}) {
        INFO(words.front() << " " << words[1]);
        const std::string comment = words.front() == "run" ? "# " : "";
        const std::string out = curb(words, environment).out;
        const auto line = [&](const std::string &name) { return words_of_line_with(out, comment + "  " + name + " "); };
        CHECK(line("cap") == comment + "cap 8GiB NVIDIA_GPU_MEMORY_LIMIT");
        CHECK(line("growth/start") == comment + "growth/start 4GiB NVIDIA_GPU_MEMORY_REQUEST");
        CHECK(line("growth/wait") == comment + "growth/wait 30s CURB_WAIT");
        CHECK(line("signal") == comment + "signal SIGUSR2 CURB_SIGNAL");
        CHECK_THAT(out, contains("  5GiB") && contains("CURB_JOB_CAP"));
        const std::string every = out.substr(out.find("gpu \"*\""));  // which the file does not name
        CHECK(words_of_line_with(every, comment + "  growth/step ") ==
              comment + "growth/step 1GiB NVIDIA_GPU_MEMORY_REQUEST");
    }
    CHECK_THAT(
        curb({"policy", "show", "--json"}, environment).out,
        contains(R"("environment":[{"name":"CURB_JOB_CAP","value":"5GiB"},{"name":"CURB_SIGNAL","value":"SIGUSR2"})"));
}

TEST_CASE("curb policy show names no variable whose value is not in force") {
    const TempDir dir;
    const std::string file = dir.write("job.json", R"({"version": 1, "release": {"signal": "SIGURG"}})");
    const Outcome outcome = curb({"policy", "show", file}, {{"CURB_SIGNAL", "SIGUSR2"},
                                                            {"CURB_CAP", "2GiB"},
                                                            {"NVIDIA_GPU_MEMORY_LIMIT", "8192"},
                                                            {"NVIDIA_GPU_MEMORY_REQUEST", "1024"}});
    CHECK_THAT(words_of_line_with(outcome.out, "  signal "), contains("SIGURG " + file));
    CHECK(words_of_line_with(outcome.out, "  cap ") == "cap 2GiB CURB_CAP");
    CHECK(words_of_line_with(outcome.out, "  growth/start ") == "growth/start - default");
}

TEST_CASE("curb policy show prints what each rule matches and what it would change") {
    const TempDir dir;
    const std::string policy = dir.write("job.json", kTwoRules);
    const Outcome outcome = curb({"policy", "show", policy});
    CHECK_THAT(outcome.out, contains("rules of " + policy +
                                     ": the first that matches a process is laid over the rest\n"
                                     "  rule 1 \"bert\": args \"*train_bert*\"\n"
                                     "    /gpu/*/cap  20GiB  " +
                                     policy + at(kTwoRules, "\"20GiB\"") +
                                     "\n"
                                     "  rule 2: exe \"true\"\n"));
    CHECK_THAT(outcome.out, contains("  rule 3: env JOB \"big*\"\n    /gpu/cuda:0/cap  30GiB"));
    // No rule is applied here: which one would be depends on the program.
    CHECK_THAT(line_with(outcome.out, "  cap "), contains("8GiB"));
}

TEST_CASE("no text of a policy can send control characters to the terminal") {
    const TempDir dir;
    const std::string good = dir.write("good.json", R"({"version": 1, "frameworks": {"env": {"A": "v)"
                                                    "\u009Bw"
                                                    R"("}},
        "rules": [{"name": "n)"
                                                    "\u202En"
                                                    R"(", "match": {"exe": "^)"
                                                    "\u009Bb"
                                                    R"("}, "gpu": {"*": {"cap": "1GiB"}}}]})");
    const std::string wrong = dir.write("wrong.json", R"({"version": 1, "k)"
                                                      "\u009B2J\u202E"
                                                      R"(": 1})");
    for (const Words &words : {Words{"check", good, wrong}, Words{"show", good}, Words{"show", wrong},
                               Words{"explain", good, "--", "true"}}) {
        const Outcome said = curb(joined({"policy"}, words));
        INFO(words.front());
        for (const char *acted_on : {"\u009B", "\u202E"})
            CHECK((said.out + said.err).find(acted_on) == std::string::npos);
        CHECK((said.out + said.err).find("\uFFFD") != std::string::npos);
    }
}

TEST_CASE("curb policy show and explain print the errors of an invalid policy") {
    const TempDir dir;
    const std::string bad = dir.write("bad.json", R"({"version": 2, "relese": {}})");
    for (const Words &words : {Words{"policy", "show", bad}, Words{"policy", "explain", bad, "--", "true"}}) {
        const Outcome outcome = curb(words);
        CHECK(outcome.status == 1);
        CHECK(outcome.out.empty());
        CHECK(lines(outcome.err).size() == 2);
    }
    CHECK(curb({"policy", "show", "/no/such.json"}).status == 2);
    CHECK(curb({"policy", "explain", "/no/such.json", "--", "true"}).status == 2);
    CHECK(curb({"policy", "show"}, {{"CURB_CAP", "8Gib"}}).status == 1);
}

// ---- the ceiling ----

TEST_CASE("curb policy show prints the machine's ceiling beside the user's value") {
    const TempDir dir;
    const Ceiling ceiling(R"({"version": 1,
"gpu": {"*": {"cap": "20GiB", "growth": {"keep_free": "2GiB"}, "report": "device"}, "cuda:1": {"cap": "10GiB"}},
"log": {"level": "info"},
"rules": [{"name": "all", "match": {}, "release": {"signal": "SIGUSR2"}}]})");
    if (!can_mount()) return;
    const std::string policy = dir.write("job.json", R"({"version": 1,
"gpu": {"*": {"cap": "30GiB", "growth": {"keep_free": "1GiB"}, "report": "cap"}}})");
    const Outcome outcome = under(ceiling, {"policy", "show", policy});
    const std::string &out = outcome.out, etc = "/etc/curb/policy.json";
    CHECK(behind(out, "ceiling") == etc);
    CHECK(words_of_line_with(out, "  cap ") == "cap 30GiB " + policy + ":2:22 at most 20GiB by " + etc + ":2:22");
    CHECK(words_of_line_with(out, "  growth/keep_free ") ==
          "growth/keep_free 1GiB " + policy + ":2:55 at least 2GiB by " + etc + ":2:55");
    CHECK(words_of_line_with(out, "  report ") ==
          "report cap " + policy + ":2:74 overridden: device by " + etc + ":2:74");
    CHECK(words_of_line_with(out, "  level ") == "level info " + etc + ":3:18 (ceiling)");
    CHECK_THAT(out.substr(out.find("gpu \"cuda:1\"")), contains("at most 10GiB by " + etc + ":2:103"));
    CHECK_THAT(out, contains("rules of the ceiling: ") && contains("rule 1 \"all\": every process"));

    const Outcome explained = under(ceiling, {"policy", "explain", policy, "--", "true"});
    CHECK_THAT(explained.out,
               contains("rules of the ceiling\n  rule 1 \"all\"  yes  laid over the rest of the file\n"));
    CHECK(words_of_line_with(explained.out, "  signal ") ==
          "signal SIGUSR2 " + etc + ":4:62 (ceiling, rule 1 \"all\")");

    const Outcome alone = under(ceiling, {"policy", "show"}, {{"CURB_CAP", "4GiB"}});
    CHECK(words_of_line_with(alone.out, "  cap ") == "cap 4GiB CURB_CAP at most 20GiB by " + etc + ":2:22");
}

TEST_CASE("curb run refuses every program if the machine's ceiling cannot be used, and says why") {
    const Ceiling wrong(R"({"version": 1, "gpu": {"*": {"cpa": "8GiB"}}})"), loose(R"({"version": 1})");
    if (!can_mount()) return;
    fs::permissions(loose.file(), fs::perms(0666));
    for (const Ceiling *ceiling : {&wrong, &loose}) {
        const Outcome run = under(*ceiling, {"run", "--cap", "1GiB", "--", "echo", "started"});
        CHECK(run.status == 125);
        CHECK(run.out.empty());
        CHECK_THAT(run.err, contains("curb: ") && contains("/etc/curb/policy.json"));
        CHECK(under(*ceiling, {"policy", "show"}).status > 0);
    }
    CHECK_THAT(under(wrong, {"run", "--", "true"}).err,
               contains(":1:30: /gpu/*/cpa: unknown key \"cpa\"; did you mean \"cap\"?"));
}

// ---- explain ----

TEST_CASE("curb policy explain judges each rule, and names the one that applies") {
    const TempDir dir;
    const std::string policy = dir.write("job.json", kTwoRules);
    const Outcome second = curb({"policy", "explain", policy, "--", "true", "train", "gpt"}, {{"JOB", "bigger"}});
    CHECK(second.status == 0);
    CHECK(words_of_line_with(second.out, "  rule 1 ") == "rule 1 \"bert\" no args: 'train gpt' is not '*train_bert*'");
    CHECK(words_of_line_with(second.out, "  rule 2 ") == "rule 2 yes laid over the rest of the file");
    CHECK(words_of_line_with(second.out, "  rule 3 ") == "rule 3 yes but an earlier rule does too");
    CHECK(words_of_line_with(second.out, "  steer ") == "steer true " + policy + at(kTwoRules, "true,") + " (rule 2)");
    CHECK(words_of_line_with(second.out, "  env ") == "env { \"A\": \"1\", \"B\": \"2\" } " + policy +
                                                          at(kTwoRules, R"({ "B")") + " (rule 2), " + policy +
                                                          at(kTwoRules, R"({ "A")"));

    const Outcome first = curb({"policy", "explain", policy, "--", "true", "train_bert.py"});
    CHECK(words_of_line_with(first.out, "  cap ") ==
          "cap 20GiB " + policy + at(kTwoRules, "\"20GiB\"") + " (rule 1 \"bert\")");
    const Outcome none = curb({"policy", "explain", policy, "--", "false"});
    CHECK(words_of_line_with(none.out, "  rule 2 ") == "rule 2 no exe: 'false' is not 'true'");
    CHECK(words_of_line_with(none.out, "  rule 3 ") == "rule 3 no env: JOB is not set");
    CHECK(words_of_line_with(none.out, "  cap ") == "cap 8GiB " + policy + at(kTwoRules, "\"8GiB\""));
    CHECK(last_line(none.out) == "Programs that the command starts in turn are judged for themselves.");
}

TEST_CASE("curb policy explain lists the variables that would be set: those that are not set yet") {
    const TempDir dir;
    const std::string policy = dir.write("job.json", kTwoRules);
    const Outcome outcome = curb({"policy", "explain", policy, "--", "true"}, {{"A", "0"}, {"TF_GPU_ALLOCATOR", "x"}});
    CHECK_THAT(outcome.out, contains("set before main, because unset now\n  B=2\n  TF_DEVICE_MIN_SYS_MEMORY_IN_MB=225\n"
                                     "  TF_FORCE_GPU_ALLOW_GROWTH=true\n") &&
                                contains("XLA_PYTHON_CLIENT_PREALLOCATE=false") && !contains("  A=") &&
                                !contains("TF_GPU_ALLOCATOR="));
    const Environment set{{"A", "0"}, {"TF_DEVICE_MIN_SYS_MEMORY_IN_MB", "500"}};
    CHECK_THAT(curb({"policy", "explain", policy, "--", "false"}, set).out, !contains("set before main"));
}

TEST_CASE("curb policy explain names the program and the arguments as the program will see them") {
    const TempDir dir;
    // Each of these is a shell script that prints the program that runs it, and its arguments.
    const std::string body = "\nreadlink /proc/$$/exe\ntr '\\0' ' ' < /proc/$$/cmdline | sed 's/^[^ ]* //; s/ $//'\n";
    const auto kind = GENERATE(as<std::string>{}, "#!/bin/sh", "#! /bin/sh -u ", "#!/usr/bin/env sh",
                               "#!/usr/bin/env -S sh -u -f", "#!/usr/bin/env -S JOB=big sh", "#!bin/shell", "");
    executable(dir, "bin/a-script", kind + body);
    fs::create_symlink("/bin/sh", dir / "bin/shell");
    fs::create_symlink("a-script", dir / "bin/link");
    for (const Words &command : {Words{"bin/a-script", "a b", "", "c"}, Words{"./bin/link", "x"}, Words{"a-script"},
                                 Words{"sh", (dir / "bin/a-script").string(), "y"}}) {
        INFO(kind << ": " << command.front());
        Start run{joined({tested::kCurb, "run", "--"}, command), {}, {}, dir.path().string(), {}};
        run.environment = {{"CURB_LIBRARY", harmless_library()}, {"PATH", "/usr/bin:/bin:" + (dir / "bin").string()}};
        const Words seen = lines(start(run).out);
        REQUIRE(seen.size() == 2);
        run.words = joined({tested::kCurb, "policy", "explain", "--"}, command);
        const Outcome explained = start(run);
        CHECK(behind(explained.out, "program") == seen[0]);
        CHECK(behind(explained.out, "arguments") == seen[1]);
    }
}

TEST_CASE("curb policy explain judges a command that cannot be run by the name that was typed") {
    const TempDir dir;
    const std::string policy =
        dir.write("job.json", R"({"version": 1, "rules": [{"match": {"exe": "curb-test-*", "args": "x"}}]})");
    const Outcome missing = curb({"policy", "explain", policy, "--", "curb-test-no-such-command", "x"});
    CHECK(missing.status == 0);
    CHECK(behind(missing.out, "program") ==
          "'curb-test-no-such-command' was not found; the rules are held against its name as typed");
    CHECK_THAT(line_with(missing.out, "  rule 1 "), contains("yes"));
    const std::string plain = dir.write("plain", "text");
    CHECK_THAT(behind(curb({"policy", "explain", "--", plain}).out, "program"), contains("cannot be executed"));
    const std::string script = executable(dir, "script", "#!/no/such/interpreter\n");
    CHECK_THAT(behind(curb({"policy", "explain", "--", script}).out, "program"),
               contains("'/no/such/interpreter' was not found"));
    const std::string sets = executable(dir, "curb-test-sets", "#!/usr/bin/env -S JOB=big sh\n");
    CHECK_THAT(line_with(curb({"policy", "explain", dir.write("rules.json", kTwoRules), "--", sets}).out, "  rule 3 "),
               contains("yes"));
    const std::string circle = executable(dir, "circle", "#!" + (dir / "circle").string() + "\n");
    CHECK(curb({"policy", "explain", "--", circle}).status == 0);
}

TEST_CASE("curb policy explain does not run its command") {
    const Witness witness;
    CHECK(curb(joined({"policy", "explain"}, witness.command())).status == 0);
    CHECK_FALSE(witness.started());
}

TEST_CASE("curb policy init --machine writes a valid ceiling with an equal share for each user") {
    const TempDir dir;
    const std::string file = (dir / "ceiling.json").string();
    CHECK_THAT(curb({"policy", "init", "--machine", "3", file}).out,
               contains("33% of each GPU for each of 3 users") && contains("/etc/curb/policy.json"));
    CHECK(curb({"policy", "check", file}).status == 0);
    CHECK_THAT(dir.read("ceiling.json"), contains(R"("cap": "33%")") && contains("// \"share\""));
    for (const char *users : {"0", "-1", "101", "five", ""})
        fails(curb({"policy", "init", "--machine", users, "-"}), contains("write one from 1 to 100"), 125);
}

TEST_CASE("curb policy init writes a valid policy, never over another file, and leaves none that is cut off") {
    const TempDir dir;
    const std::string file = (dir / "job.json").string();
    const auto init = [&](rlim_t longest) {
        return start({{tested::kCurb, "policy", "init", file}, {}, {}, {}, [=] {
                          const rlimit limit{longest, longest};
                          ::setrlimit(RLIMIT_FSIZE, &limit);
                          ::signal(SIGXFSZ, SIG_IGN);
                      }});
    };
    fails(init(100), contains("cannot be written: File too large"), 125);
    CHECK_FALSE(fs::exists(file));
    CHECK(init(RLIM_INFINITY).status == 0);
    CHECK(curb({"policy", "check", file}).status == 0);
    dir.write("job.json", "mine");
    CHECK_THAT(init(RLIM_INFINITY).err, contains("exists already"));
    CHECK(dir.read("job.json") == "mine");
}
