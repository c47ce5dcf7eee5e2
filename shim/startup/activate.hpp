// Activates curb once the driver is initialised.
#pragma once

namespace curb::shim::process {

// Finds the devices, reads the policy and starts the threads, after cuInit has succeeded. Later calls return true.
// False if there is no host memory; then nothing has changed, and the program may call cuInit again. Thread-safe.
bool activate() noexcept;

}  // namespace curb::shim::process
