// Compares curb's books of this process's first device with the simulated driver's, by kind.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "../../process/helpers/within.hpp"
#include "control/client.hpp"

namespace load {

inline constexpr std::chrono::seconds kPatience{60};  // a deadline that a busy machine meets too

// Returns curb's books. nullopt if curb does not answer or a release is in progress.
std::optional<curb::control::GpuStatus> status();

// Returns the differences, a line for each kind, at a quiet point, when no other thread works; empty if there are none.
// Waits up to `patience` for them to go. Compares the sum of arrays, contexts, stacks and code, as curb measures a part
// of them; without NVML curb may charge less for arrays. With `pools_end` pools were destroyed with blocks in use,
// which curb measures from then on: the sum then includes pools.
std::string differences_that_stay(std::chrono::milliseconds patience, bool pools_end = false);

// Returns the driver's books as "plain 512, pools 0, …".
std::string of_driver();

// Asks for a release by all steps. True if curb's cache is empty then; false if curb does not answer.
bool release();

}  // namespace load
