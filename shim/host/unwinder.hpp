// libgcc_s, which unwinds the stack for exceptions. curb loads it when it becomes active, not with libcurb.so: its
// constructor executes CPUID, which traps in virtual machines. That would double curb's cost at process start
// (docs/PERFORMANCE.md), and most processes never use CUDA.
#pragma once

namespace curb::shim::unwinder {

// Loads it if needed. False if it cannot be loaded now (no memory, no descriptor). Call it before code that may throw:
// std::bad_alloc would find no memory left for loading it. Thread-safe. Keeps errno.
bool load() noexcept;

}  // namespace curb::shim::unwinder
