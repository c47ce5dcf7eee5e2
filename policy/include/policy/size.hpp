// Sizes as people write them: "8GiB", "512MiB", "75%" (of the device), "0B".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "policy/result.hpp"

namespace curb::policy {

using Bytes = std::uint64_t;

inline constexpr Bytes KiB = Bytes{1} << 10;
inline constexpr Bytes MiB = Bytes{1} << 20;
inline constexpr Bytes GiB = Bytes{1} << 30;

// A sum of changes, which may be less than none: never beyond 64 bits.
constexpr std::int64_t plus(std::int64_t a, std::int64_t b) noexcept {
    std::int64_t out = 0;
    return __builtin_add_overflow(a, b, &out) ? (a < 0 ? INT64_MIN : INT64_MAX) : out;
}

// An amount of device memory: so many bytes, or so many hundredths of a percent of the device.
struct Size {
    enum class Unit : std::uint8_t { bytes, basis_points };
    Unit unit = Unit::bytes;
    std::uint64_t amount = 0;

    // Bytes of it on a device of `device_total` bytes. Rounded down; never overflows.
    [[nodiscard]] Bytes on(Bytes device_total) const noexcept;

    friend bool operator==(const Size &, const Size &) = default;
};

// Reads "8GiB", "8 GiB", "1.5GiB", "8G" (binary, as nvidia-smi and docker read it), "1073741824B", "75%", "12.5%". A
// number without a unit is an error: "8" would be 8 bytes. The error is a sentence that says what is wrong and what
// would be right. Thread-safe; may throw std::bad_alloc.
Result<Size, std::string> parse_size(std::string_view text);

// Reads a list of sizes, of which the lowest holds: "25%,6GiB". Which that is depends on the device, so at most one of
// each unit stays, in the order of the text.
Result<std::vector<Size>, std::string> parse_lowest(std::string_view text);
// "25%,6GiB"
std::string format(const std::vector<Size> &lowest);
// The lowest of them on a device of `device_total` bytes. `sizes` is not empty.
Bytes lowest_on(const std::vector<Size> &sizes, Bytes device_total) noexcept;

// Writes bytes so that parse_size reads the same number ("8GiB", "512MiB", "12345B").
std::string format_exact(Bytes bytes);
// For people, to at most two decimals: "3.42 GiB".
std::string format_human(Bytes bytes);
std::string format(const Size &size);

}  // namespace curb::policy
