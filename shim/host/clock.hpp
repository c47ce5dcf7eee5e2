// The time of the machine, whatever clock another preload shows the program.
#pragma once

#include <cstdint>

namespace curb::shim {

// Finds the clock. Once, before the first now_ms().
void find_clock() noexcept;

// Milliseconds of the system's monotonic clock, 4 ms coarse. Thread-safe; takes no lock.
std::uint64_t now_ms() noexcept;
// Microseconds of the same clock, exact. Thread-safe; takes no lock.
std::uint64_t now_us() noexcept;

}  // namespace curb::shim
