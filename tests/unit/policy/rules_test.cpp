// Which processes the rules of a policy file match.
#include "policy/rules.hpp"

#include <random>

#include "catch.hpp"
#include "policies.hpp"

using namespace curb::policy;

namespace {

Subject process(std::string exe, std::string args = "") {
    return {.exe = std::move(exe), .args = std::move(args), .users = {"alice", "1000"}, .environment = nullptr};
}
Subject with_environment(Environment variables, std::string args) {
    Subject subject = process("/opt/conda/bin/python3.11", std::move(args));
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

Rule rule(Match match, const char *cap, std::optional<std::string> name = {}) {
    return {.name = std::move(name), .match = std::move(match), .over = layer_of(cap)};
}

// Matches a pattern without sets and escapes by exhaustive search.
bool by_trying(std::string_view pattern, std::string_view text) {
    if (pattern.empty()) return text.empty();
    if (pattern[0] == '*')
        return by_trying(pattern.substr(1), text) || (!text.empty() && by_trying(pattern, text.substr(1)));
    return !text.empty() && (pattern[0] == '?' || pattern[0] == text[0]) &&
           by_trying(pattern.substr(1), text.substr(1));
}

}  // namespace

// ---- patterns ----

// A case below compares patterns of stars and question marks with an exhaustive search.
TEST_CASE("A pattern matches the whole text, and its stars and question marks match any bytes") {
    CHECK_FALSE(glob("train.py", "train.pyc"));
    CHECK_FALSE(glob("train.py", "a train.py"));
    CHECK_FALSE(glob("train.py", "Train.py"));
    for (const char *text : {"", "a", "a/b", "\xFF\n"}) CHECK(glob("*", text));
    CHECK(glob("/opt/*/python?", "/opt/a/b/bin/python3"));
    CHECK(glob("*train*bert*", "-m train --model bert-base"));
    CHECK_FALSE(glob("*train*bert*", "bert train"));
    CHECK(glob("??", "\xC3\xA4"));
    CHECK_FALSE(glob("?", ""));
}

TEST_CASE("A set matches one of its bytes, a negated set one of the others") {
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

TEST_CASE("A bracket that is never closed matches itself") {
    for (const char *text : {"[", "[a", "[a-z", "[!", "[]", "[!]", "a[", "[[", "]["}) {
        INFO(text);
        CHECK(glob(text, text));
        CHECK_FALSE(glob(text, "a"));
    }
    CHECK(glob("[*", "[anything"));
    CHECK(glob("[a][b", "a[b"));
    CHECK_FALSE(glob("[a][b", "ab"));
}

TEST_CASE("Characters beside a set, and after a backslash, match themselves") {
    struct Row {
        const char *pattern, *text, *other;  // which it matches, and which not
    };
    for (const auto &[pattern, text, other] : {
             Row{"train[0-9].py", "train7.py", "train.py"},
             Row{"*[0-9]", "a1b2", "a1b"},
             Row{"[a-]]", "-]", "-"},
             Row{"\\*", "*", "a"},
             Row{"\\?", "?", "a"},
             Row{"\\[a]", "[a]", "a"},
             Row{"\\\\", "\\", "\\\\"},
             Row{"\\a", "a", "\\a"},
             Row{"a\\", "a\\", "a"},  // at the end it matches itself
             Row{"*\\*", "a*", "ab"},
         }) {
        INFO(pattern);
        CHECK(glob(pattern, text));
        CHECK_FALSE(glob(pattern, other));
    }
}

TEST_CASE("Patterns of stars and question marks match as an exhaustive search does") {
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

// The time is proportional to the product of the two lengths: some milliseconds for each of these. With one more factor
// it would be seconds, too long for a test under sanitizers; if every star tried everything, it would not end.
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

TEST_CASE("A match without conditions matches every process; otherwise each condition has to hold") {
    const Subject known = with_environment({{"JOB", "bert-large"}, {"EMPTY", ""}}, "-u train_bert.py --epochs 3");
    const Subject unknown;  // none of its facts could be read
    struct Row {
        Match match;
        bool known, unknown;
    };
    for (const auto &[match, of_known, of_unknown] : std::vector<Row>{
             {{}, true, true},
             // The program: its file's name, or its path if the pattern has a slash.
             {exe("python3*"), true, false},
             {exe("*"), true, true},
             {exe("/opt/*/python3*"), true, false},
             {exe("*/bin/*"), true, false},
             {exe("/*"), true, false},
             {exe("/opt/python3*"), false, false},
             {exe("conda*"), false, false},
             {exe("bin/python3*"), false, false},
             // The arguments, as one text.
             {args("*train_bert*"), true, false},
             {args("-u train_bert.py --epochs ?"), true, false},
             {args("train_bert.py"), false, false},
             {args("*python3*"), false, false},
             {args(""), false, true},
             // The user, by name or number.
             {user("al*"), true, false},
             {user("1000"), true, false},
             {user("bob"), false, false},
             {user("100"), false, false},
             {user("*"), true, false},
             // Variables; one that is unset matches nothing.
             {env({{"JOB", "bert*"}, {"EMPTY", ""}}), true, false},
             {env({{"JOB", "gpt*"}}), false, false},
             {env({{"JOB", "*"}, {"UNSET", "*"}}), false, false},
             {env({{"UNSET", ""}}), false, false},
             {env({}), true, true},
             // Several.
             {{.exe = "python3*", .args = "*bert*", .user = "alice", .env = Environment{{"JOB", "b*"}}}, true, false},
             {{.exe = "perl", .args = "*bert*", .user = "alice", .env = Environment{{"JOB", "b*"}}}, false, false},
             {{.exe = "python3*", .args = "*gpt*", .user = "alice", .env = Environment{{"JOB", "b*"}}}, false, false},
             {{.exe = "python3*", .args = "*bert*", .user = "bob", .env = Environment{{"JOB", "b*"}}}, false, false},
             {{.exe = "python3*", .args = "*bert*", .user = "alice", .env = Environment{{"JOB", "g"}}}, false, false},
         }) {
        INFO(mismatch(match, known).value_or("match") << "; " << mismatch(match, unknown).value_or("match"));
        CHECK(!mismatch(match, known) == of_known);
        CHECK(!mismatch(match, unknown) == of_unknown);
    }
}

TEST_CASE("mismatch() says why a rule does not match a process") {
    const Subject subject = with_environment({{"JOB", "a\nb"}}, "train.py");
    CHECK(mismatch(exe("perl*"), subject) == "exe: 'python3.11' is not 'perl*'");
    CHECK(mismatch(exe("/usr/*"), subject) == "exe: '/opt/conda/bin/python3.11' is not '/usr/*'");
    CHECK(mismatch(args("*bert*"), subject) == "args: 'train.py' is not '*bert*'");
    CHECK(mismatch(user("bob"), subject) == "user: 'alice' is not 'bob'");
    CHECK(mismatch(user("bob"), Subject{}) == "user: '' is not 'bob'");
    CHECK(mismatch(env({{"UNSET", "bert"}}), subject) == "env: UNSET is not set");
    CHECK(mismatch(env({{"JOB", "bert"}}), subject) == "env: JOB: 'a\\x0Ab' is not 'bert'");
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
    CHECK(layer_under({.base = layer_of("1GiB"), .rules = {}}, Subject{}) == layer_of("1GiB"));
    CHECK(first_match(file, process("/usr/bin/python3", "bert.py")) == file.rules.data());
}

TEST_CASE("Fields that a rule leaves out come from the base") {
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

TEST_CASE("A rule is named by its number, and by its name if it has one") {
    const File file{.base = {}, .rules = {rule({}, "1GiB"), rule({}, "1GiB", "bert"), rule({}, "1GiB", "a\nb")}};
    CHECK(rule_name(file, file.rules[0]) == "rule 1");
    CHECK(rule_name(file, file.rules[1]) == "rule 2 \"bert\"");
    CHECK(rule_name(file, file.rules[2]) == "rule 3 \"a\\x0Ab\"");
}

TEST_CASE("asks_for_user() is true only if a rule matches by user") {
    CHECK_FALSE(asks_for_user({}));
    CHECK_FALSE(asks_for_user({.base = {}, .rules = {rule(exe("*"), "1GiB"), rule(env({{"USER", "*"}}), "1GiB")}}));
    CHECK(asks_for_user({.base = {}, .rules = {rule(exe("*"), "1GiB"), rule(user("alice"), "1GiB")}}));
}
