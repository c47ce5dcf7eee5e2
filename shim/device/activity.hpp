// Whether the program uses its GPUs. `release.idle` polls and clears it.
#pragma once

#include <atomic>

namespace curb::shim::activity {

// Set when the program allocates, frees or launches. Atomic because each such call reads it.
inline constinit std::atomic<bool> used{false};

// Usually costs one load.
inline void note() noexcept {
    if (!used.load(std::memory_order_relaxed)) used.store(true, std::memory_order_relaxed);
}

}  // namespace curb::shim::activity
