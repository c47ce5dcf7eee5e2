// Records that the program uses the GPU, for releases after an idle time (`release.idle`).
#pragma once

#include <atomic>

namespace curb::shim::activity {

// Set at every use; release/idle polls and clears it.
inline constinit std::atomic<bool> used{false};

// Call it when the program allocates, frees or launches. Thread-safe. Usually costs one load.
inline void note() noexcept {
    if (!used.load(std::memory_order_relaxed)) used.store(true, std::memory_order_relaxed);
}

}  // namespace curb::shim::activity
