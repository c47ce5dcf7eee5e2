// A View as one line of JSON: cli/schemas/ps.schema.json.
#pragma once

#include <string>
#include <vector>

#include "view.hpp"

namespace curb::cli {

// A process that was asked for and cannot be shown.
struct PsError {
    int pid = 0;
    std::string message;
};
std::string ps_json(const View &view, const std::vector<PsError> &errors, control::UnixMs now);

}  // namespace curb::cli
