// The last releases and whether one is under way, for whoever asks from outside. Thread-safe.
#pragma once

#include <vector>

#include "control/status.hpp"

namespace curb::shim::release {

// A release is under way for as long as this lives.
class RunningGuard {
  public:
    RunningGuard() noexcept;
    ~RunningGuard();
    RunningGuard(const RunningGuard &) = delete;
    RunningGuard &operator=(const RunningGuard &) = delete;
};
bool is_running() noexcept;

void remember(const control::ReleaseReport &report) noexcept;
// The newest last. May throw std::bad_alloc.
std::vector<control::PastRelease> past();

}  // namespace curb::shim::release
