// curb wakes with the driver.
#pragma once

namespace curb::shim::process {

// The driver has been initialised: finds the devices, reads the policy, starts the threads. Once; later calls return
// true. False: there is no host memory for it, and nothing has begun; it can be called again. Thread-safe.
bool activate() noexcept;

}  // namespace curb::shim::process
