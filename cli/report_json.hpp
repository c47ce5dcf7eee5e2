// The figures of a recorded run, as schemas/report.schema.json describes them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "trace/summary.hpp"

namespace curb::cli {

std::string report_json(const Recording &recording, const Summary &summary);

// What the answers of `curb report` and `curb replay` begin with.
std::vector<std::pair<const char *, std::string>> recording_json(const Recording &recording);

}  // namespace curb::cli
