// Which libraries in this process reach the driver past curb: opened with RTLD_DEEPBIND, so that their references are
// bound to libcuda's own functions, or using a second driver (dlmopen, another file). They are told of, not fought.
#pragma once

#include <vector>

#include "control/status.hpp"

namespace curb::shim {

// What is so now; a library that finds its functions later is found later. Milliseconds, and for that long, object by
// object, the loader's lock: on the control thread alone. Before the first cuInit through curb there is nothing to
// compare with: empty. May throw std::bad_alloc.
std::vector<control::Passed> passed();

}  // namespace curb::shim
