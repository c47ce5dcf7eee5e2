// Reads the policy for `curb policy show` and `explain`, and for `curb replay`.
#pragma once

#include <optional>

#include "config/load.hpp"

namespace curb::cli {

// The name of standard input as a source's file.
inline constexpr const char *kStandardInput = "<stdin>";

// Reads the policy. If that fails, prints the errors, sets `status` to 1 (2: it cannot be read) and returns nullopt.
std::optional<config::Reading> read_policy(const config::Source &source, bool as_json, int &status);

}  // namespace curb::cli
