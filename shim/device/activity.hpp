// Whether the program uses the GPU, for releases that a policy asks for when it has not for a while (`release.idle`).
#pragma once

#include <atomic>

namespace curb::shim::activity {

// Set by every use, and taken back by who polls it (release/idle).
inline constinit std::atomic<bool> used{false};

// The program allocated, freed or launched something. Thread-safe; a load, mostly.
inline void note() noexcept {
    if (!used.load(std::memory_order_relaxed)) used.store(true, std::memory_order_relaxed);
}

}  // namespace curb::shim::activity
