// What a release gave back, as the outside is told it: in the log today, over the socket to `curb release` later.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "policy/policy.hpp"

namespace curb::control {

struct StepReport {
    policy::Step step{};
    std::int64_t freed = 0;  // bytes that the device had more free after the step (measured, so it can be negative)
    double milliseconds = 0;
    std::string reason;  // why nothing or not everything could be given back ("no Python", "graph capture"); or empty
};

struct ReleaseReport {
    std::string trigger;  // "SIGUSR1", "cap lowered"
    std::vector<StepReport> steps;
    double milliseconds = 0;  // from the request to the end of the last step
};

// One line: "released 3.42 GiB in 44 ms on SIGUSR1: pools 0 B (nothing reserved), frameworks 3.42 GiB".
std::string text(const ReleaseReport &report);

}  // namespace curb::control
