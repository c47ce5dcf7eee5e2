// The units in which the driver allocates device memory (measured on H100 and H200: docs/results/driver.md).
#pragma once

#include "policy/values/size.hpp"

namespace curb::policy {

// Plain memory. Blocks of up to kLargestShared share granules; larger blocks have granules of their own.
inline constexpr Bytes kGranule = 2 * MiB;
inline constexpr Bytes kLargestShared = 1 * MiB;
// Memory pools.
inline constexpr Bytes kPoolUnit = 32 * MiB;

// Rounds up to whole units. Saturates instead of overflowing.
constexpr Bytes round_up(Bytes bytes, Bytes unit) noexcept {
    return bytes > ~Bytes{0} - (unit - 1) ? ~Bytes{0} - (unit - 1) : (bytes + unit - 1) / unit * unit;
}

}  // namespace curb::policy
