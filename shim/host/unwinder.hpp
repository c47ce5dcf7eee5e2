// libgcc_s, which walks the stack for exceptions: loaded when curb wakes, not with libcurb.so. Its constructor asks the
// processor what it can, for which a virtual machine stops it each time: half of what a process pays for curb at its
// start (docs/PERFORMANCE.md), and most processes never use CUDA.
#pragma once

namespace curb::shim::unwinder {

// Loads it, if it is not there. False: there is no memory or no descriptor for it now. Whoever is about to run code
// that throws calls this first: an exception that says that memory is exhausted would find none for loading it.
// Thread-safe; leaves errno.
bool load() noexcept;

}  // namespace curb::shim::unwinder
