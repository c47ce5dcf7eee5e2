// Kernels: which of them need not be looked at again at their next launch.
#pragma once

namespace curb::shim::kernels {

// A context or code has gone, or a limit was lowered: handles may come again, and stacks may have to grow again.
void forget_settled() noexcept;

}  // namespace curb::shim::kernels
