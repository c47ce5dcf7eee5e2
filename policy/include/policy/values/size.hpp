// Sizes as people write them: "8GiB", "512MiB", "75%" (of the device), "0B".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "policy/values/result.hpp"

namespace curb::policy {

using Bytes = std::uint64_t;

inline constexpr Bytes KiB = Bytes{1} << 10;
inline constexpr Bytes MiB = Bytes{1} << 20;
inline constexpr Bytes GiB = Bytes{1} << 30;

// Adds. Saturates instead of overflowing.
constexpr std::int64_t plus(std::int64_t a, std::int64_t b) noexcept {
    std::int64_t out = 0;
    return __builtin_add_overflow(a, b, &out) ? (a < 0 ? INT64_MIN : INT64_MAX) : out;
}

// An amount of device memory: bytes, or hundredths of a percent of the device.
struct Size {
    enum class Unit : std::uint8_t { bytes, basis_points };
    Unit unit = Unit::bytes;
    std::uint64_t amount = 0;

    // Returns the bytes on a device of `device_total` bytes, rounded down. Never overflows.
    [[nodiscard]] Bytes on(Bytes device_total) const noexcept;

    friend bool operator==(const Size &, const Size &) = default;
};

// Reads "8GiB", "8 GiB", "1.5GiB", "8G" (binary, as nvidia-smi and docker read it), "1073741824B", "75%", "12.5%". A
// number without a unit is an error, except "0": "8" would be 8 bytes. The error names the fault and a correct size.
// Thread-safe. May throw std::bad_alloc.
Result<Size, std::string> parse_size(std::string_view text);

// Writes bytes exactly, as parse_size reads them: "8GiB", "512MiB", "12345B".
std::string format_exact(Bytes bytes);
// Writes bytes for people, with at most two decimals: "3.42 GiB".
std::string format_human(Bytes bytes);
// Writes bytes rounded up to two decimals, as parse_size reads them: "3.43GiB" for 3.421 GiB.
std::string format_up(Bytes bytes);
std::string format(const Size &size);

}  // namespace curb::policy
