// Spans of time as people write them: "30s", "10m", "500ms", "2h", "1d", "0s".
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "policy/result.hpp"

namespace curb::policy {

using Duration = std::chrono::milliseconds;

// A year: longer spans are slips of the pen.
inline constexpr Duration kLongest = std::chrono::hours(24 * 365);

// A whole number and a unit (ms, s, m, h, d), at most kLongest. The error is a sentence that says what is wrong and
// what would be right. Thread-safe; may throw std::bad_alloc.
Result<Duration, std::string> parse_duration(std::string_view text);

// Exactly, in the largest unit that leaves a whole number: "90s", "2h", "0s". May throw std::bad_alloc.
std::string format(Duration duration);

}  // namespace curb::policy
