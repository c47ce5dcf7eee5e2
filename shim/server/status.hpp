// The status of this process, for clients of the control socket.
//
// Reads only curb's own records: calls no driver, NVML or Python, touches no file or log, and takes no lock that is
// held across one of these. So the control thread can answer while they are stuck. A detailed status also takes the
// loader's lock, which no thread holds for long, and reads /proc (bypass.hpp).
#pragma once

#include "control/messages.hpp"

namespace curb::shim::status {

// Returns the status. Throws std::bad_alloc.
control::Status now(const control::StatusRequest &asked);

}  // namespace curb::shim::status
