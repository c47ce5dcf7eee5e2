// The keys of a policy file, by the table of fields: patterns of JSON pointers, in which "*" stands for each key of an
// object or each item of an array. Private to config/.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace curb::config {

inline constexpr std::string_view kRule = "/rules/*";

// True if the pattern is a field: "/gpu/*/cap", and in a rule "/rules/*/gpu/*/cap".
bool is_field(std::string_view pattern);
// Returns the members of the object `pattern`: of "" they are "version", "gpu" and so on; of "/gpu" it is "*".
std::vector<std::string_view> known_members(std::string_view pattern);

// Returns the message for a key that the object `pattern` does not have, with the key that was probably meant.
std::string unknown_key(std::string_view key, std::string_view pattern);
// Returns the field that a misplaced key probably meant: "/gpu/*/cap" for "cap", in a rule "/rules/*/gpu/*/cap". Empty
// if there is none.
std::string belongs(std::string_view key, std::string_view pattern);

}  // namespace curb::config
