// Finds libraries in this process that bypass curb: opened with RTLD_DEEPBIND, so that their references are bound to
// libcuda's own functions, or using a second driver (dlmopen, another file). curb reports them and changes nothing.
#pragma once

#include <vector>

#include "control/status.hpp"

namespace curb::shim {

// Returns the libraries that bypass curb at this moment. Empty before the first cuInit through curb, which shows where
// the driver is. For curb's own threads: takes milliseconds, reads /proc, and holds the loader's lock for one library
// at a time. May throw std::bad_alloc.
std::vector<control::Bypass> bypasses();

}  // namespace curb::shim
