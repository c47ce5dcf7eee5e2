// The rules of a policy file: for which processes each is. Pure and thread-safe; may throw std::bad_alloc.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "policy/policy.hpp"

namespace curb::policy {

// Whether `text` as a whole is what `pattern` describes: '*' stands for any bytes, also none and '/', '?' for one,
// "[a-z]" for one of a set, "[!a-z]" for one outside it, "\*" for itself. A '[' that is never closed stands for itself.
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

// What a policy file says, whole.
struct File {
    Layer base;
    std::vector<Rule> rules;  // the first that matches is laid over the base
    friend bool operator==(const File &, const File &) = default;
};

// A process as rules see it.
struct Subject {
    std::string exe;                 // absolute path of the program's file, symbolic links followed; empty: not known
    std::string args;                // its arguments joined by blanks, without the program itself
    std::vector<std::string> users;  // the user's name, if known, and number
    std::function<const char *(const char *)> environment;  // looks one variable up; null: unset
};

// Why the rule is not for this process, as in `args: 'train.py' is not '*bert*'`; none: it is.
std::optional<std::string> mismatch(const Match &match, const Subject &subject);
// The first that is for this process; null: none is.
const Rule *first_match(const File &file, const Subject &subject);
// "rule 2 \"bert\""; the number is that of the array, from 1.
std::string rule_name(const File &file, const Rule &rule);

// Whether a rule asks for the user, whose name may have to be looked up.
bool asks_for_user(const File &file);

// The base with one of its rules laid over it; null: none.
Layer with_rule(const File &file, const Rule *rule);

}  // namespace curb::policy
