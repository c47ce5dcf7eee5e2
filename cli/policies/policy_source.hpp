// Reads the policy for `curb policy show` and `explain`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "config/load.hpp"
#include "json.hpp"

namespace curb::cli {

struct PolicySource {
    config::Source source;
    config::Reading reading;
};

// Reads FILE as if CURB_POLICY named it ("-": standard input). Empty: reads the policy that this environment names.
// Prints the errors and sets `status`, the exit status, if there are any.
std::optional<PolicySource> read_policy(const std::string &file, bool as_json, int &status);

// Reads standard input as config::read_file reads files.
policy::Result<std::string, config::Diagnostic> read_standard_input();

// Returns 0 if there are none, 1 if the policy is wrong, 2 if it could not be read.
int exit_status(const config::Diagnostics &diagnostics);

// [{"file":"job.json","line":4,"column":14,"pointer":"/gpu/*/cap","message":"…"}]
std::string diagnostics_json(const config::Diagnostics &diagnostics);

// Return the sources of the policy, as lines of cells and as members of an object.
std::vector<std::vector<std::string>> places_text(const PolicySource &policy);
json::Members places_json(const PolicySource &policy);

}  // namespace curb::cli
