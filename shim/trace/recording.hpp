// The switch and the clock of the trace. Each event reads both.
#pragma once

#include <atomic>
#include <cstdint>
#include <ctime>

namespace curb::shim::trace {

namespace detail {
inline constinit std::atomic<bool> recording{false};
}  // namespace detail

// Thread-safe. Costs one load.
inline bool on() noexcept { return detail::recording.load(std::memory_order_relaxed); }

// Returns the nanoseconds of CLOCK_MONOTONIC.
inline std::uint64_t now_ns() noexcept {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec);
}

}  // namespace curb::shim::trace
