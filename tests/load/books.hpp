// What curb says of this process's first device beside what the simulated driver has there, by kind.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "control/client.hpp"

namespace load {

inline constexpr std::chrono::seconds kPatience{60};  // deadlines, which a busy machine keeps

// What curb says. None: it does not answer, or a release is under way.
std::optional<curb::control::GpuStatus> status();

// How the two differ, a line for each kind. Arrays, contexts, stacks and code are compared together, as curb measures a
// part of them; where NVML is blind, arrays may be charged with less. `pools_end`: pools have been destroyed with
// blocks in use, which are measured from then on: they are compared with those. Empty: they are equal.
std::string differences(bool pools_end = false);
// The same at a quiet point, at which no other thread works: waits until they are equal, or for `patience`.
std::string differences_that_stay(std::chrono::milliseconds patience, bool pools_end = false);

// "plain 512, pools 0, …": what the driver has.
std::string of_driver();

// Whether releases, asked for by all steps, leave nothing in curb's cache. False: no answer either.
bool release();

}  // namespace load
