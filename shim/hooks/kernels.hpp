// The record of kernels that need no check at their next launch, and of loaded code.
#pragma once

namespace curb::shim::kernels {

// Clears the record, after a context or code was destroyed or a limit lowered: handles may be reused, and stacks may
// grow again. Thread-safe.
void forget() noexcept;

}  // namespace curb::shim::kernels
