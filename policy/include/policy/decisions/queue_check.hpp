// Decides how often a process checks whether others wait for memory. A check reads the folders of all users, which
// takes longer the more processes there are; so checks get a bounded part of the processor's time. Pure: callers pass
// the time.
#pragma once

#include <algorithm>
#include <cstdint>

namespace curb::policy {

class QueueCheck {
  public:
    // True if a check is due. `changed`: since the last one began, this process has freed memory or has waited itself.
    // The last result is then of little use: another process that waits may be the one to get this memory.
    [[nodiscard]] constexpr bool due(std::uint64_t now_ms, bool changed) const noexcept {
        return now_ms >= (changed ? next_after_change_ms_ : next_ms_);
    }
    // A check has begun: other threads go on with the last result.
    constexpr void began(std::uint64_t now_ms) noexcept { next_ms_ = next_after_change_ms_ = now_ms + kMostMs; }
    // It has ended, and took this much time of the processor.
    constexpr void ended(std::uint64_t now_ms, std::uint64_t took_ns) noexcept {
        const auto pause = [&](std::uint64_t times) {
            return std::clamp(times * took_ns / kNsPerMs, kLeastMs, kMostMs);
        };
        constexpr std::uint64_t kTimes = 50, kTimesAfterChange = 5;
        next_ms_ = now_ms + pause(kTimes);
        next_after_change_ms_ = now_ms + pause(kTimesAfterChange);
    }

  private:
    static constexpr std::uint64_t kLeastMs = 20, kMostMs = 1000, kNsPerMs = 1'000'000;

    std::uint64_t next_ms_ = 0, next_after_change_ms_ = 0;
};

}  // namespace curb::policy
