// The kernel's monotonic clock, read through libc's own function: another preload may show the program a false clock.
// Thread-safe. Takes no lock.
#pragma once

#include <cstdint>
#include <ctime>

#include "host/real_libc.hpp"

namespace curb::shim {

namespace detail {
inline constinit real::ClockGettime *clock_gettime = nullptr;  // cached: every request reads the clock
}

// Looks up libc's clock_gettime. Call it once, before the first now_ms().
inline void find_clock() noexcept { detail::clock_gettime = real::clock_gettime(); }

// Returns milliseconds, in steps of up to 4 ms.
inline std::uint64_t now_ms() noexcept {
    timespec now{};
    detail::clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1000 + static_cast<std::uint64_t>(now.tv_nsec) / 1'000'000;
}
// Returns nanoseconds of the same clock, exact.
inline std::uint64_t now_ns() noexcept {
    timespec now{};
    detail::clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec);
}
// The same in microseconds.
inline std::uint64_t now_us() noexcept { return now_ns() / 1000; }

}  // namespace curb::shim
