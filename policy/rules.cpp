#include "policy/rules.hpp"

#include <algorithm>

#include "policy/values/words.hpp"

namespace curb::policy {
namespace {

// Matches `c` with the set "[…]" at `at`; InSet::end is behind its "]". Returns nullopt if the set has no "]".
// `last_close`: the position of the pattern's last ']'; it saves a search for each byte of the text.
struct InSet {
    bool yes;
    std::size_t end;
};
std::optional<InSet> in_set(std::string_view pattern, std::size_t at, std::size_t last_close, char c) noexcept {
    std::size_t i = at + 1;
    const bool negated = i < pattern.size() && pattern[i] == '!';
    if (negated) ++i;
    if (last_close == std::string_view::npos || last_close <= i) return std::nullopt;  // a first ']' matches itself
    bool found = false;
    for (bool first = true; i < pattern.size() && (first || pattern[i] != ']'); first = false) {
        char low = pattern[i++], high = low;
        if (i + 1 < pattern.size() && pattern[i] == '-' && pattern[i + 1] != ']') {
            high = pattern[i + 1];
            i += 2;
        }
        const auto byte = [](char of) { return static_cast<unsigned char>(of); };
        found |= byte(low) <= byte(c) && byte(c) <= byte(high);
    }
    return InSet{found != negated, i + 1};
}

// Matches `c` with the pattern's element at `at`, which is not '*'. Returns the element's end; nullopt if it does not
// match.
std::optional<std::size_t> one(std::string_view pattern, std::size_t at, std::size_t last_close, char c) noexcept {
    const auto after = [](bool matches, std::size_t end) { return matches ? std::optional(end) : std::nullopt; };
    switch (pattern[at]) {
        case '?': return at + 1;
        case '[':
            if (const auto set = in_set(pattern, at, last_close, c)) return after(set->yes, set->end);
            return after(c == '[', at + 1);
        case '\\':
            if (at + 1 < pattern.size()) return after(c == pattern[at + 1], at + 2);
            return after(c == '\\', at + 1);
        default: return after(c == pattern[at], at + 1);
    }
}

std::string said(std::string_view what, std::string_view is, std::string_view pattern) {
    return std::string(what) + ": " + quote(is) + " is not " + quote(pattern);
}

}  // namespace

// After a mismatch the match continues at the last '*', which takes one byte more. Earlier '*' need no second try: the
// last one can take every byte that they could. So the time is at most the product of both lengths.
bool glob(std::string_view pattern, std::string_view text) noexcept {
    const std::size_t last_close = pattern.rfind(']');
    std::size_t at = 0, i = 0, star = std::string_view::npos, taken = 0;
    while (i < text.size()) {
        if (at < pattern.size() && pattern[at] == '*') {
            star = at++;
            taken = i;
            continue;
        }
        const auto next = at < pattern.size() ? one(pattern, at, last_close, text[i]) : std::nullopt;
        if (next) {
            at = *next;
            ++i;
        } else if (star != std::string_view::npos) {
            at = star + 1;
            i = ++taken;
        } else {
            return false;
        }
    }
    return pattern.find_first_not_of('*', at) == std::string_view::npos;
}

std::optional<std::string> mismatch(const Match &match, const Subject &subject) {
    if (match.exe) {
        const std::string_view is =
            match.exe->find('/') == std::string::npos ? file_name(subject.exe) : std::string_view(subject.exe);
        if (!glob(*match.exe, is)) return said("exe", is, *match.exe);
    }
    if (match.args && !glob(*match.args, subject.args)) return said("args", subject.args, *match.args);
    if (match.user && std::none_of(subject.users.begin(), subject.users.end(),
                                   [&](const std::string &user) { return glob(*match.user, user); }))
        return said("user", subject.users.empty() ? "" : subject.users.front(), *match.user);
    for (const auto &[name, pattern] : match.env.value_or(Environment{})) {
        const char *value = subject.environment ? subject.environment(name.c_str()) : nullptr;
        if (!value) return "env: " + name + " is not set";
        if (!glob(pattern, value)) return said("env: " + name, value, pattern);
    }
    return std::nullopt;
}

const Rule *first_match(const File &file, const Subject &subject) {
    for (const Rule &rule : file.rules)
        if (!mismatch(rule.match, subject)) return &rule;
    return nullptr;
}

std::string rule_name(const File &file, const Rule &rule) {
    const std::string number = "rule " + std::to_string(&rule - file.rules.data() + 1);
    return rule.name ? number + " " + quote(*rule.name, '"') : number;
}

bool asks_for_user(const File &file) {
    return std::any_of(file.rules.begin(), file.rules.end(),
                       [](const Rule &rule) { return rule.match.user.has_value(); });
}

Layer with_rule(const File &file, const Rule *rule) {
    Layer layer = file.base;
    if (rule) lay_over(layer, rule->over);
    return layer;
}

}  // namespace curb::policy
