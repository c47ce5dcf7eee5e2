// Decides when an idle process releases memory: once in each idle period. Pure: callers pass the time and the last use
// of the GPU.
#pragma once

#include <algorithm>
#include <cstdint>

#include "policy/values/duration.hpp"

namespace curb::policy {

class IdlePeriod {
  public:
    explicit constexpr IdlePeriod(std::uint64_t now_ms) noexcept : since_ms_(now_ms) {}

    // The process used the GPU, last at `when_ms`: starts a new period.
    constexpr void used(std::uint64_t when_ms) noexcept {
        since_ms_ = std::max(since_ms_, when_ms);
        served_ = false;
    }
    // True if the process has been idle for `idle` and has not released since.
    [[nodiscard]] constexpr bool due(std::uint64_t now_ms, Duration idle) const noexcept {
        return !served_ && now_ms - std::min(now_ms, since_ms_) >= static_cast<std::uint64_t>(idle.count());
    }
    // A release was requested: none is due until the process uses the GPU again.
    constexpr void served() noexcept { served_ = true; }

    // Returns the pause between two polls of the GPU's use, short enough to notice the end of a period in time.
    static constexpr std::uint64_t poll_interval_ms(Duration idle) noexcept {
        constexpr std::uint64_t kLeast = 10, kMost = 5000;
        return std::clamp(static_cast<std::uint64_t>(idle.count()) / 8, kLeast, kMost);
    }

  private:
    std::uint64_t since_ms_;
    bool served_ = false;
};

}  // namespace curb::policy
