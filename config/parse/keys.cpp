#include "keys.hpp"

#include <algorithm>

#include "policy/values/words.hpp"

namespace curb::config {
namespace {

using policy::quote;

// All fields, then those that a rule can override.
constexpr std::string_view kPatterns[] = {
#define CURB_FILE_FIELD(pointer, ...) pointer,
#define CURB_GPU_FIELD(pointer, ...) pointer,
#define CURB_JOB_FIELD(pointer, ...) pointer,
#define CURB_RULE_FIELD(pointer, ...) pointer,
#include "policy/fields.def"
#define CURB_GPU_FIELD(pointer, ...) "/rules/*" pointer,
#define CURB_JOB_FIELD(pointer, ...) "/rules/*" pointer,
#include "policy/fields.def"
};

bool is_in_rule(std::string_view pattern) { return pattern.starts_with(kRule); }

}  // namespace

bool is_field(std::string_view pattern) {
    return std::find(std::begin(kPatterns), std::end(kPatterns), pattern) != std::end(kPatterns);
}

std::vector<std::string_view> known_members(std::string_view pattern) {
    std::vector<std::string_view> names;
    for (std::string_view rest : kPatterns) {
        if (!rest.starts_with(pattern)) continue;
        rest.remove_prefix(pattern.size());
        if (!rest.starts_with('/')) continue;
        rest.remove_prefix(1);
        const std::string_view name = rest.substr(0, rest.find('/'));
        if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
    return names;
}

std::string belongs(std::string_view key, std::string_view pattern) {
    if (key.empty() || key.find('/') != std::string_view::npos || key == "*") return {};
    for (const std::string_view candidate : kPatterns) {
        if (is_in_rule(candidate) != is_in_rule(pattern) && is_in_rule(pattern)) continue;
        const std::string whole = std::string(candidate) + "/";
        const std::size_t at = whole.find("/" + std::string(key) + "/");
        if (at != std::string::npos) return whole.substr(0, at + 1 + key.size());
    }
    return {};
}

std::string unknown_key(std::string_view key, std::string_view pattern) {
    const std::vector<std::string_view> known = known_members(pattern), top = known_members("");
    if (pattern == kRule && std::find(top.begin(), top.end(), key) != top.end())
        return quote(key, '"') + " is for the file as a whole and cannot stand in a rule; take it out here";
    std::string message = "unknown key " + quote(key, '"');
    if (const std::string_view near = policy::nearest(key, known); !near.empty())
        return message + "; did you mean " + quote(near, '"') + "?";
    if (const std::string there = belongs(key, pattern); !there.empty())
        return message + "; did you mean " + there + "?";
    return message +
           "; known here: " + policy::joined(known, ", ", [](std::string_view name) { return quote(name, '"'); });
}

}  // namespace curb::config
