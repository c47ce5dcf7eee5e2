// The keys that a policy file may hold, along the table of fields: patterns of JSON pointers in which "*" stands for
// each key of an object, or each item of an array. Private to config/.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace curb::config {

inline constexpr std::string_view kRule = "/rules/*";

// Whether a field stands there: "/gpu/*/cap", and in a rule "/rules/*/gpu/*/cap".
bool is_field(std::string_view pattern);
// The members of the object that `pattern` names: of "" they are "version", "gpu" and so on; of "/gpu" there is "*".
std::vector<std::string_view> known_members(std::string_view pattern);

// What is wrong with a key that the object at `pattern` does not have, and which was probably meant.
std::string unknown_key(std::string_view key, std::string_view pattern);
// Where a key that stands in the wrong object belongs: "/gpu/*/cap" for "cap", in a rule "/rules/*/gpu/*/cap". Empty:
// nowhere.
std::string belongs(std::string_view key, std::string_view pattern);

}  // namespace curb::config
