// What is known of kernels: which need not be inspected at their next launch, and whose code is loaded.
#pragma once

namespace curb::shim::kernels {

// A context or code has gone, or a limit was lowered: handles may come again, and stacks may have to grow again.
// Thread-safe.
void forget() noexcept;

}  // namespace curb::shim::kernels
