// When a process has been idle for long enough to give memory back by itself: once in each idle period. Pure: the time
// and what the process did come in from outside.
#pragma once

#include <algorithm>
#include <cstdint>

#include "policy/duration.hpp"

namespace curb::policy {

class IdlePeriod {
  public:
    explicit constexpr IdlePeriod(std::uint64_t now_ms) noexcept : since_ms_(now_ms) {}

    // The process used the GPU, last at `when_ms`: a new period begins.
    constexpr void used(std::uint64_t when_ms) noexcept {
        since_ms_ = std::max(since_ms_, when_ms);
        served_ = false;
    }
    // Whether a release is due, if periods of `idle` are worth one.
    [[nodiscard]] constexpr bool due(std::uint64_t now_ms, Duration idle) const noexcept {
        return !served_ && now_ms - std::min(now_ms, since_ms_) >= static_cast<std::uint64_t>(idle.count());
    }
    // It was asked for: nothing more until the process uses the GPU again.
    constexpr void served() noexcept { served_ = true; }

    // How long to wait before the next look: often enough to see the end of a period in time, but not so often that the
    // looks themselves are noticed.
    static constexpr std::uint64_t between_looks_ms(Duration idle) noexcept {
        constexpr std::uint64_t kLeast = 10, kMost = 5000;
        return std::clamp(static_cast<std::uint64_t>(idle.count()) / 8, kLeast, kMost);
    }

  private:
    std::uint64_t since_ms_;
    bool served_ = false;
};

}  // namespace curb::policy
