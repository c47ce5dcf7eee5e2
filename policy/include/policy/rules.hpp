// The rules of a policy file, which select processes. Pure. Thread-safe. May throw std::bad_alloc.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "policy/policy.hpp"

namespace curb::policy {

// True if `pattern` matches the whole `text`. '*' matches any bytes, also none and '/'; '?' matches one byte; "[a-z]"
// one byte of a set; "[!a-z]" one byte outside it; "\*" a '*'. A '[' without a ']' matches itself.
bool glob(std::string_view pattern, std::string_view text) noexcept;

struct Match {
    std::optional<std::string> exe;
    std::optional<std::string> args;
    std::optional<std::string> user;
    std::optional<Environment> env;  // name -> pattern
    friend bool operator==(const Match &, const Match &) = default;
};

struct Rule {
    std::optional<std::string> name;
    Match match;
    Layer over;
    friend bool operator==(const Rule &, const Rule &) = default;
};

// A whole policy file.
struct File {
    Layer base;
    std::vector<Rule> rules;  // the first that matches overrides the base
    friend bool operator==(const File &, const File &) = default;
};

// The properties of a process that rules can match.
struct Subject {
    std::string exe;                 // absolute path of the program's file, symbolic links followed; empty: unknown
    std::string args;                // its arguments joined by blanks, without the program itself
    std::vector<std::string> users;  // the user's name, if known, and number
    std::function<const char *(const char *)> environment;  // the value of a variable; null if unset
};

// Returns nullopt if the rule matches the process, else the reason: `args: 'train.py' is not '*bert*'`.
std::optional<std::string> mismatch(const Match &match, const Subject &subject);
// Returns the first rule that matches the process. Null if none does.
const Rule *first_match(const File &file, const Subject &subject);
// Returns `rule 2 "bert"`; the number counts from 1.
std::string rule_name(const File &file, const Rule &rule);

// True if a rule matches by user: then the caller must look up the user's name.
bool asks_for_user(const File &file);

// Returns the base with `rule` laid over it; null: no rule.
Layer with_rule(const File &file, const Rule *rule);

}  // namespace curb::policy
