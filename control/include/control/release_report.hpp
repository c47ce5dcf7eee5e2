// The result of a release, for the log and for `curb release`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "policy/policy.hpp"

namespace curb::control {

struct StepReport {
    policy::Step step{};
    std::int64_t freed = 0;  // bytes, as measured; negative only in answers and recordings of version 0.2
    double milliseconds = 0;
    std::string reason;  // why the step gave back nothing, or not all: "no Python", "graph capture"; may be empty
    friend bool operator==(const StepReport &, const StepReport &) = default;
};

struct ReleaseReport {
    std::string trigger;  // "SIGUSR1", "cap lowered", "curb release"
    std::vector<StepReport> steps;
    double milliseconds = 0;                     // from the request to the end of the last step
    std::vector<std::string> returns_nothing{};  // frameworks whose allocator keeps memory until the process ends
    friend bool operator==(const ReleaseReport &, const ReleaseReport &) = default;
};

// Returns the bytes of all steps together, limited to 64 bits.
std::int64_t freed(const ReleaseReport &report);
// "3.42 GiB", "-2 MiB".
std::string size_text(std::int64_t bytes);
// "44 ms", "4.6 ms". Independent of the locale.
std::string time_text(double milliseconds);

// "TensorFlow's allocator returns nothing before the process ends; …", with the remedy. Empty without frameworks.
std::string returns_nothing_text(const std::vector<std::string> &frameworks);

// One line: "released 3.42 GiB in 44 ms on SIGUSR1: pools 0 B (nothing reserved), frameworks 3.42 GiB".
std::string text(const ReleaseReport &report);

}  // namespace curb::control
