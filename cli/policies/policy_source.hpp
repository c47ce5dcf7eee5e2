// Reads the policy for `curb policy show` and `explain`, and for `curb replay`.
#pragma once

#include <optional>

#include "config/load.hpp"

namespace curb::cli {

// The name of standard input as a source's file.
inline constexpr const char *kStandardInput = "<stdin>";

// Reads what the source names. Prints the errors and sets `status`, the exit status, if there are any: 1, or 2 if the
// policy cannot be read.
std::optional<config::Reading> read_policy(const config::Source &source, bool as_json, int &status);

}  // namespace curb::cli
