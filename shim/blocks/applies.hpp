// Says if this process's memory is made so that curb can move it.
#pragma once

namespace curb::shim::blocks {

// True if the policy has naps that are light, no several ranks talk, and each device has virtual memory management.
// Decided at the first call, which must come after the first cuInit: memory that was made one way cannot become the
// other. Thread-safe. The first call calls the driver.
bool applies() noexcept;
// Returns why it does not apply, for users. Empty if it does. Thread-safe.
const char *why_not() noexcept;

}  // namespace curb::shim::blocks
