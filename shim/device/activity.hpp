// Whether the program uses its GPUs.
#pragma once

#include <atomic>
#include <cstdint>

namespace curb::shim::activity {

// Set when the program allocates, frees, launches or copies, or comes back from a nap; cleared by last_used_ms().
// Atomic because each such call reads it.
inline constinit std::atomic<bool> used{false};

// Usually costs one load.
inline void note() noexcept {
    if (!used.load(std::memory_order_relaxed)) used.store(true, std::memory_order_relaxed);
}

// Returns the time at which a call of this function last found that the program had used them. On the worker.
inline std::uint64_t last_used_ms(std::uint64_t now) noexcept {
    static constinit std::uint64_t last = 0;
    if (used.exchange(false)) last = now;
    return last;
}

}  // namespace curb::shim::activity
