// Requests that were refused, counted by what they met, and the last of them, for whoever asks from outside.
//
// Thread-safe. A granted request passes nothing of this; a refused one takes a lock for as long as it takes to write 48
// bytes.
#pragma once

#include <vector>

#include "control/status.hpp"
#include "devices.hpp"

namespace curb::shim::refusals {

inline constexpr std::size_t kKept = 16;

// Counts it. `limit`: that it met, as control::Refusal has it.
void note(Device &device, Bytes bytes, policy::Obstacle why, Bytes held, Bytes limit) noexcept;

// The newest last. May throw std::bad_alloc.
std::vector<control::Refusal> last();

}  // namespace curb::shim::refusals
