// The last releases, and whether one is running, for `curb ps`. Thread-safe.
#pragma once

#include <vector>

#include "control/status.hpp"
#include "lifetime.hpp"

namespace curb::shim::release {

// Marks a release as running while it lives.
class RunningGuard : NoCopy {
  public:
    RunningGuard() noexcept;
    ~RunningGuard();
};
bool is_running() noexcept;

void remember(const control::ReleaseReport &report) noexcept;
// Returns the last releases, the newest last. Throws std::bad_alloc.
std::vector<control::PastRelease> past();

}  // namespace curb::shim::release
