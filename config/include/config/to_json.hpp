// Diagnostics for programs to read.
#pragma once

#include <string>

#include "config/load.hpp"

namespace curb::config {

// {"valid":false,"diagnostics":[{"file":"job.json","line":4,"column":14,"pointer":"/gpu/*/cap","message":"…"}]}
// Bytes that are not UTF-8 (in a file's name) become U+FFFD. Throws std::bad_alloc alone.
std::string to_json(const Diagnostics &diagnostics);

}  // namespace curb::config
