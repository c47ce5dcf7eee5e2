// Reads the policy for `curb policy show` and `explain`, and for `curb replay`.
#pragma once

#include <optional>

#include "config/load.hpp"

namespace curb::cli {

// The name of standard input as a source's file.
inline constexpr const char *kStandardInput = "<stdin>";

// Reads what the source names. Prints the errors, if any, and sets the exit status: 1, or 2 if it cannot be read.
std::optional<config::Reading> read_policy(const config::Source &source, bool as_json, int &status);

}  // namespace curb::cli
