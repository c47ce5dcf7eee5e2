// What the process says of itself to whoever asks on its control socket.
//
// From the books alone: nothing here calls the driver, NVML or Python, waits for a file or the log, or takes a lock
// under which others do. It runs on the control thread, and answers while all of these are stuck. In detail it takes
// the loader's lock too (passed.hpp), under which nobody waits for long.
#pragma once

#include "control/messages.hpp"

namespace curb::shim::status {

// May throw std::bad_alloc.
control::Status now(const control::StatusRequest &asked);

}  // namespace curb::shim::status
