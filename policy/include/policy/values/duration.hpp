// Durations as policies and options write them: "30s", "10m", "500ms", "2h", "1d", "0s".
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "policy/values/result.hpp"

namespace curb::policy {

using Duration = std::chrono::milliseconds;

// A year. curb takes a longer duration for a typing error.
inline constexpr Duration kLongest = std::chrono::hours(24 * 365);

// Longer than every duration that can be written: "never", where a field allows it.
inline constexpr Duration kNever = Duration::max();

// Reads a whole number and a unit (ms, s, m, h, d), at most kLongest. The error names the fault and a correct value.
// Thread-safe. May throw std::bad_alloc.
Result<Duration, std::string> parse_duration(std::string_view text);
// The same, or "never": kNever.
Result<Duration, std::string> parse_delay(std::string_view text);

// Writes the duration exactly, in the largest unit that gives a whole number: "90s", "2h", "0s". May throw
// std::bad_alloc.
std::string format(Duration duration);
// Writes a time left for people, rounded up: "4.2s", "95s", "12m", "3h". May throw std::bad_alloc.
std::string format_time_left(Duration left);

}  // namespace curb::policy
