// Counts refused requests by limit, and keeps the last ones for `curb ps`.
//
// Thread-safe. A granted request never comes here; a refused one holds a lock while it writes 48 bytes.
#pragma once

#include <vector>

#include "control/status.hpp"
#include "devices.hpp"

namespace curb::shim::refusals {

inline constexpr std::size_t kKept = 16;

// Counts and keeps a refusal. `limit`: as in control::Refusal.
void note(Device &device, Bytes bytes, policy::Obstacle why, Bytes held, Bytes limit) noexcept;

// Returns the last refusals, the newest last. Throws std::bad_alloc.
std::vector<control::Refusal> last();

}  // namespace curb::shim::refusals
