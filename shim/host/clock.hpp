// The kernel's monotonic clock, read through libc's own function: another preload may show the program a false clock.
#pragma once

#include <cstdint>

namespace curb::shim {

// Looks up libc's clock_gettime. Call it once, before the first now_ms().
void find_clock() noexcept;

// Returns milliseconds, up to 4 ms coarse. Thread-safe. Takes no lock.
std::uint64_t now_ms() noexcept;
// Returns exact microseconds of the same clock. Thread-safe. Takes no lock.
std::uint64_t now_us() noexcept;

}  // namespace curb::shim
