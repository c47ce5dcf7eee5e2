// The figures of a recorded run as JSON; tests/command/answers/report.json is an example.
#pragma once

#include <string>

#include "json.hpp"
#include "summary.hpp"

namespace curb::cli {

std::string report_json(const Recording &recording, const Summary &summary);

// Returns the members that `curb report` and `curb replay` share.
json::Members recording_json(const Recording &recording);

}  // namespace curb::cli
