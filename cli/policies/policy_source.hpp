// The policy that `curb policy show` and `explain` speak of.
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

// FILE as if CURB_POLICY named it ("-": standard input); empty: what this environment names. What is wrong with it is
// printed, and `status` is then the exit status.
std::optional<PolicySource> read_policy(const std::string &file, bool as_json, int &status);

// Standard input as config::read_file reads files.
policy::Result<std::string, config::Diagnostic> read_standard_input();

// 0: there are none; 1: the policy is wrong; 2: it could not be read.
int exit_status(const config::Diagnostics &diagnostics);

// [{"file":"job.json","line":4,"column":14,"pointer":"/gpu/*/cap","message":"…"}]
std::string diagnostics_json(const config::Diagnostics &diagnostics);

// Which places there are, as lines of cells and as members of an object.
std::vector<std::vector<std::string>> places_text(const PolicySource &policy);
json::Members places_json(const PolicySource &policy);

}  // namespace curb::cli
