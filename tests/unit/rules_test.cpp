// For which processes the rules of a policy file are.
#include "policy/rules.hpp"

#include <random>

#include "catch.hpp"
#include "policies.hpp"

using namespace curb::policy;

namespace {

Subject process(std::string exe, std::string args = "") {
    return {.exe = std::move(exe), .args = std::move(args), .users = {"alice", "1000"}, .environment = nullptr};
}
Subject with_environment(Environment variables) {
    Subject subject = process("/usr/bin/python3");
    subject.environment = [variables = std::move(variables)](const char *name) {
        const auto found = variables.find(name);
        return found == variables.end() ? nullptr : found->second.c_str();
    };
    return subject;
}

Match exe(std::string pattern) { return {.exe = std::move(pattern), .args = {}, .user = {}, .env = {}}; }
Match args(std::string pattern) { return {.exe = {}, .args = std::move(pattern), .user = {}, .env = {}}; }
Match user(std::string pattern) { return {.exe = {}, .args = {}, .user = std::move(pattern), .env = {}}; }
Match env(Environment patterns) { return {.exe = {}, .args = {}, .user = {}, .env = std::move(patterns)}; }

bool matches(const Match &match, const Subject &subject) { return !mismatch(match, subject); }

Layer layer_of(const char *cap) {
    Layer layer;
    layer.gpu = {capped("*", cap)};
    return layer;
}
Rule rule(Match match, const char *cap, std::optional<std::string> name = {}) {
    return {.name = std::move(name), .match = std::move(match), .over = layer_of(cap)};
}

// What a pattern without sets and escapes means, by trying everything.
bool by_trying(std::string_view pattern, std::string_view text) {
    if (pattern.empty()) return text.empty();
    if (pattern[0] == '*')
        return by_trying(pattern.substr(1), text) || (!text.empty() && by_trying(pattern, text.substr(1)));
    return !text.empty() && (pattern[0] == '?' || pattern[0] == text[0]) &&
           by_trying(pattern.substr(1), text.substr(1));
}

}  // namespace

// ---- patterns ----

TEST_CASE("A pattern is for the text as a whole") {
    CHECK(glob("train.py", "train.py"));
    CHECK_FALSE(glob("train.py", "train.pyc"));
    CHECK_FALSE(glob("train.py", "a train.py"));
    CHECK_FALSE(glob("train.py", "Train.py"));
    CHECK(glob("", ""));
    CHECK_FALSE(glob("", "a"));
    CHECK_FALSE(glob("a", ""));
}

TEST_CASE("A star stands for any bytes, also none and slashes") {
    for (const char *text : {"", "a", "a/b", "\xFF\n"}) CHECK(glob("*", text));
    CHECK(glob("python3*", "python3"));
    CHECK(glob("python3*", "python3.11"));
    CHECK_FALSE(glob("python3*", "python2"));
    CHECK(glob("*train*bert*", "-m train --model bert-base"));
    CHECK_FALSE(glob("*train*bert*", "bert train"));
    CHECK(glob("*ab", "aab"));
    CHECK(glob("*abab*abc", "ababababc abc"));
    CHECK(glob("/opt/*/python", "/opt/a/b/bin/python"));
    CHECK(glob("**", ""));
    CHECK(glob("a***b", "ab"));
    CHECK_FALSE(glob("*a", ""));
}

TEST_CASE("A question mark stands for one byte, whichever") {
    CHECK(glob("?", "a"));
    CHECK(glob("?", "/"));
    CHECK(glob("a?c", "a*c"));
    CHECK_FALSE(glob("?", ""));
    CHECK_FALSE(glob("?", "ab"));
    CHECK(glob("??", "\xC3\xA4"));
    CHECK(glob("?*?", "ab"));
    CHECK_FALSE(glob("?*?", "a"));
}

TEST_CASE("A set stands for one of its bytes, a negated one for one of the others") {
    const auto [pattern, in, out] = GENERATE(table<const char *, std::string, std::string>({
        {"[abc]", "abc", "d-[]"},
        {"[a-c]", "abc", "d-`A"},
        {"[!a-c]", "d!-", "abc"},
        {"[a-cx-z]", "abcxyz", "dw-"},
        {"[a-]", "a-", "b]"},
        {"[-a]", "a-", "b]"},
        {"[]a]", "]a", "[b"},
        {"[!]a]", "b[!", "]a"},
        {"[]-a]", "]^_`a", "[b-"},
        {"[!-a]", "b!", "-a"},
        {"[a!]", "a!", "b"},
        {"[[]", "[", "]"},
        {"[*?]", "*?", "a"},
        {"[\\]", "\\", "]"},  // no escape within a set
        {"[c-a]", "", "abc-"},
        {"[/]", "/", "a"},
        {"[a-\xFF]", "a\x7F\x80\xFF", "A`"},
        {"[\x80-\xFF]", "\x80\xC3\xFF",
         "\x7F"
         "a"},
    }));
    INFO(pattern);
    for (const char c : in) CHECK(glob(pattern, std::string(1, c)));
    for (const char c : out) CHECK_FALSE(glob(pattern, std::string(1, c)));
    CHECK_FALSE(glob(pattern, ""));
    CHECK_FALSE(glob(pattern, in + in));
}

TEST_CASE("What follows a set is held against what follows its byte") {
    CHECK(glob("train[0-9].py", "train7.py"));
    CHECK_FALSE(glob("train[0-9].py", "train.py"));
    CHECK(glob("*[0-9]", "a1b2"));
    CHECK_FALSE(glob("*[0-9]", "a1b"));
    CHECK(glob("[a-]]", "-]"));
}

TEST_CASE("A bracket that is never closed stands for itself") {
    for (const char *text : {"[", "[a", "[a-z", "[!", "[]", "[!]", "a[", "[["}) {
        INFO(text);
        CHECK(glob(text, text));
        CHECK_FALSE(glob(text, "a"));
    }
    CHECK(glob("[*", "[anything"));
    CHECK(glob("][", "]["));
    CHECK(glob("[a][b", "a[b"));
    CHECK_FALSE(glob("[a][b", "ab"));
}

TEST_CASE("After a backslash a byte stands for itself") {
    CHECK(glob("\\*", "*"));
    CHECK_FALSE(glob("\\*", "a"));
    CHECK(glob("\\?", "?"));
    CHECK_FALSE(glob("\\?", "a"));
    CHECK(glob("\\[a]", "[a]"));
    CHECK_FALSE(glob("\\[a]", "a"));
    CHECK(glob("\\\\", "\\"));
    CHECK(glob("\\a", "a"));
    CHECK(glob("a\\", "a\\"));  // at the end for itself
    CHECK(glob("*\\*", "a*"));
    CHECK_FALSE(glob("*\\*", "ab"));
}

TEST_CASE("Patterns of stars and question marks mean what trying everything finds") {
    std::mt19937 random(1);
    const auto word = [&](std::string_view letters, std::size_t most) {
        std::string out;
        for (auto n = random() % (most + 1); n > 0; --n) out += letters[random() % letters.size()];
        return out;
    };
    int yes = 0;
    for (int round = 0; round < 50'000; ++round) {
        const std::string pattern = word("ab*?", 7), text = word("ab", 8);
        const bool expected = by_trying(pattern, text);
        yes += expected ? 1 : 0;
        if (glob(pattern, text) == expected) continue;  // Catch2's assertions are slow
        INFO(pattern << " and " << text);
        FAIL("it should be " << expected);
    }
    CHECK(yes > 5'000);
}

// The time is that of the two lengths multiplied: some thousandths of a second for each of these. With one factor more
// it is seconds, under the sanitizers more than a test may take, and if every star tries everything no end is seen.
TEST_CASE("Patterns made to be slow come to an end") {
    const std::string as(6'000, 'a'), brackets(6'000, '['), backslashes(6'000, '\\');
    std::string stars;
    for (int i = 0; i < 600; ++i) stars += "a*";
    CHECK(glob(stars, as));
    CHECK_FALSE(glob(stars + "b", as));
    CHECK_FALSE(glob(std::string(600, '*') + "b", as));
    CHECK_FALSE(glob("*" + std::string(600, '?') + "b", as));
    CHECK_FALSE(glob("*" + std::string(600, '[') + "b", brackets));
    CHECK_FALSE(glob("*[" + std::string(600, 'b') + "]", as));
    CHECK_FALSE(glob("*" + std::string(600, '\\') + "b", backslashes));
}

// ---- processes ----

TEST_CASE("A match that says nothing is for every process") {
    CHECK(matches({}, process("/usr/bin/python3", "train.py")));
    CHECK(matches({}, Subject{}));
}

TEST_CASE("A program is matched by its file's name, or by its whole path where a slash is asked for") {
    const Subject subject = process("/opt/conda/bin/python3.11");
    CHECK(matches(exe("python3*"), subject));
    CHECK(matches(exe("*"), subject));
    CHECK(matches(exe("/opt/*/python3*"), subject));
    CHECK(matches(exe("*/bin/*"), subject));
    CHECK_FALSE(matches(exe("/opt/python3*"), subject));
    CHECK_FALSE(matches(exe("conda*"), subject));
    CHECK_FALSE(matches(exe("bin/python3*"), subject));
    CHECK(matches(exe("python3"), process("python3")));
}

TEST_CASE("A program that is not known is only any program") {
    CHECK(matches(exe("*"), process("")));
    CHECK_FALSE(matches(exe("python3*"), process("")));
    CHECK_FALSE(matches(exe("/*"), process("")));
}

TEST_CASE("Arguments are matched as one text") {
    const Subject subject = process("/usr/bin/python3", "-u train_bert.py --epochs 3");
    CHECK(matches(args("*train_bert*"), subject));
    CHECK(matches(args("-u train_bert.py --epochs ?"), subject));
    CHECK_FALSE(matches(args("train_bert.py"), subject));
    CHECK_FALSE(matches(args("*python3*"), subject));
    CHECK(matches(args(""), process("/usr/bin/python3")));
}

TEST_CASE("A user is matched by name or by number") {
    const Subject subject = process("/usr/bin/python3");
    CHECK(matches(user("alice"), subject));
    CHECK(matches(user("al*"), subject));
    CHECK(matches(user("1000"), subject));
    CHECK_FALSE(matches(user("bob"), subject));
    CHECK_FALSE(matches(user("100"), subject));
    CHECK_FALSE(matches(user("*"), Subject{}));
}

TEST_CASE("Variables are matched by their values, each of them; one that is unset matches nothing") {
    const Subject subject = with_environment({{"SLURM_JOB_NAME", "bert-large"}, {"EMPTY", ""}});
    CHECK(matches(env({{"SLURM_JOB_NAME", "bert*"}}), subject));
    CHECK(matches(env({{"EMPTY", ""}, {"SLURM_JOB_NAME", "*"}}), subject));
    CHECK_FALSE(matches(env({{"SLURM_JOB_NAME", "gpt*"}}), subject));
    CHECK_FALSE(matches(env({{"SLURM_JOB_NAME", "*"}, {"UNSET", "*"}}), subject));
    CHECK_FALSE(matches(env({{"UNSET", ""}}), subject));
    CHECK(matches(env({}), subject));
    CHECK(matches(env({}), Subject{}));
    CHECK_FALSE(matches(env({{"SLURM_JOB_NAME", "*"}}), Subject{}));
}

TEST_CASE("All that a match says has to hold") {
    const Match all{.exe = "python3", .args = "*bert*", .user = "alice", .env = Environment{{"JOB", "b*"}}};
    Subject subject = with_environment({{"JOB", "bert"}});
    subject.args = "train_bert.py";
    CHECK(matches(all, subject));
    Subject other = subject;
    other.exe = "/usr/bin/perl";
    CHECK_FALSE(matches(all, other));
    other = subject;
    other.args = "train_gpt.py";
    CHECK_FALSE(matches(all, other));
    other = subject;
    other.users = {"bob", "1001"};
    CHECK_FALSE(matches(all, other));
    other = subject;
    other.environment = [](const char *) { return "gpt"; };
    CHECK_FALSE(matches(all, other));
}

TEST_CASE("Why a rule is not for a process is said") {
    const Subject subject = process("/opt/bin/python3", "train.py");
    CHECK(mismatch(exe("perl*"), subject) == "exe: 'python3' is not 'perl*'");
    CHECK(mismatch(exe("/usr/*"), subject) == "exe: '/opt/bin/python3' is not '/usr/*'");
    CHECK(mismatch(args("*bert*"), subject) == "args: 'train.py' is not '*bert*'");
    CHECK(mismatch(user("bob"), subject) == "user: 'alice' is not 'bob'");
    CHECK(mismatch(user("bob"), Subject{}) == "user: '' is not 'bob'");
    CHECK(mismatch(env({{"JOB", "bert"}}), subject) == "env: JOB is not set");
    CHECK(mismatch(env({{"JOB", "bert"}}), with_environment({{"JOB", "a\nb"}})) == "env: JOB: 'a\\x0Ab' is not 'bert'");
    CHECK(mismatch(args("x"), process("", std::string(1'000'000, 'y')))->size() < 200);
}

// ---- files ----

namespace {

Layer layer_under(const File &file, const Subject &subject) { return with_rule(file, first_match(file, subject)); }

}  // namespace

TEST_CASE("The first rule that matches is laid over the base, and no other") {
    File file{.base = layer_of("1GiB"),
              .rules = {rule(args("*bert*"), "2GiB"), rule(exe("python3"), "3GiB"), rule({}, "4GiB")}};
    CHECK(layer_under(file, process("/usr/bin/python3", "bert.py")) == layer_of("2GiB"));
    CHECK(layer_under(file, process("/usr/bin/python3", "gpt.py")) == layer_of("3GiB"));
    CHECK(layer_under(file, process("/usr/bin/perl", "gpt.pl")) == layer_of("4GiB"));
    file.rules.pop_back();
    CHECK(layer_under(file, process("/usr/bin/perl", "gpt.pl")) == layer_of("1GiB"));
    CHECK(first_match(file, process("/usr/bin/perl")) == nullptr);
    CHECK(first_match(file, process("/usr/bin/python3", "bert.py")) == file.rules.data());
}

TEST_CASE("What a rule leaves out is as the base has it") {
    File file{.base = layer_of("1GiB"), .rules = {rule({}, "2GiB")}};
    file.base.release.signal = 0;
    file.base.log.level = LogLevel::debug;
    file.rules[0].over.log.level = LogLevel::error;
    const Layer layer = layer_under(file, Subject{});
    CHECK(layer.gpu == layer_of("2GiB").gpu);
    CHECK(layer.release.signal == 0);
    CHECK(layer.log.level == LogLevel::error);
    CHECK(file.base.log.level == LogLevel::debug);
}

TEST_CASE("A file without rules is its base") {
    CHECK(layer_under({.base = layer_of("1GiB"), .rules = {}}, Subject{}) == layer_of("1GiB"));
}

TEST_CASE("A rule is called by its number, and by its name where it has one") {
    const File file{.base = {}, .rules = {rule({}, "1GiB"), rule({}, "1GiB", "bert"), rule({}, "1GiB", "a\nb")}};
    CHECK(rule_name(file, file.rules[0]) == "rule 1");
    CHECK(rule_name(file, file.rules[1]) == "rule 2 \"bert\"");
    CHECK(rule_name(file, file.rules[2]) == "rule 3 \"a\\x0Ab\"");
}

TEST_CASE("The user is asked for only where a rule does") {
    CHECK_FALSE(asks_for_user({}));
    CHECK_FALSE(asks_for_user({.base = {}, .rules = {rule(exe("*"), "1GiB"), rule(env({{"USER", "*"}}), "1GiB")}}));
    CHECK(asks_for_user({.base = {}, .rules = {rule(exe("*"), "1GiB"), rule(user("alice"), "1GiB")}}));
}
