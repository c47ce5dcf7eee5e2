// Decides when a program leaves a GPU for others that wait for it (suspend.turn). Pure: callers pass what they know of
// the programs and the time. Each program decides for itself, from figures that all of them can read.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <span>

#include "policy/decisions/growth.hpp"
#include "policy/values/duration.hpp"
#include "policy/values/size.hpp"

namespace curb::policy::turns {

// A turn lasts this many times as long as the moves that it costs, so that they take at most a tenth of the time.
inline constexpr int kMoves = 10;
// A program that was idle most of the last minute waits no longer than this for others to leave,
inline constexpr Duration kAnswer = std::chrono::seconds(3);
// and then stays for this part of a turn.
inline constexpr int kPart = 10;

// Returns how long a turn lasts. `moves`: what the last moves out and back took. `is_answer`: the program was idle and
// others have left for it before the end of their turns.
constexpr Duration length(Duration turn, Duration moves, bool is_answer) noexcept {
    const Duration whole = std::max(turn, kMoves * moves);
    return is_answer ? std::max(whole / kPart, moves) : whole;
}

// A program that waits for room itself does not use its turn. It ends after this time.
inline constexpr Duration kUnused = std::chrono::seconds(1);
// Returns when a turn ends, by the clock of all. `waits_since`: a request of the program has waited for room on a GPU
// since then; 0: none waits.
constexpr std::int64_t end(std::int64_t began_ms, Duration length, std::int64_t waits_since_ms) noexcept {
    const std::int64_t whole = began_ms + length.count();
    return waits_since_ms == 0 ? whole : std::min<std::int64_t>(whole, waits_since_ms + kUnused.count());
}

// Of the last minute, a bit for each second.
using Seconds = std::uint64_t;
inline constexpr int kSeconds = 60;
inline constexpr Seconds kAllBusy = (Seconds{1} << kSeconds) - 1;
constexpr Seconds after_second(Seconds busy, bool was_busy) noexcept {
    return ((busy << 1) | (was_busy ? 1 : 0)) & kAllBusy;
}
// True if it was idle most of that minute.
constexpr bool is_seldom_busy(Seconds busy) noexcept { return __builtin_popcountll(busy) * 2 < kSeconds; }

// A program whose memory can leave the GPU.
struct Runner {
    std::uint64_t process = 0;  // orders those whose turns end at the same time
    std::int64_t ends_ms = 0;   // its turn, by the clock of all
    Bytes bytes = 0;            // that can leave
    friend constexpr auto operator<=>(const Runner &a, const Runner &b) noexcept {
        return a.ends_ms != b.ends_ms ? a.ends_ms <=> b.ends_ms : a.process <=> b.process;
    }
};

// The first request in the order that does not fit.
struct Next {
    Bytes missing = 0;  // that are not free
    bool is_seldom_busy = false;
    Duration waits{};
};

// True if `self`, which is not among `others`, leaves for this request: those leave whose turns ended first, as many as
// it needs; and none, if all of them together are too few.
constexpr bool leaves(const Runner &self, std::span<const Runner> others, const Next &next,
                      std::int64_t now_ms) noexcept {
    const bool cuts = next.is_seldom_busy && next.waits >= kAnswer;
    const auto may_leave = [&](const Runner &one) { return one.bytes != 0 && (cuts || one.ends_ms <= now_ms); };
    if (!may_leave(self) || next.missing == 0) return false;
    Bytes before = 0, all = self.bytes;
    for (const Runner &one : others) {
        if (!may_leave(one)) continue;
        all = added(all, one.bytes);
        if (one < self) before = added(before, one.bytes);
    }
    return before < next.missing && all >= next.missing;
}

// ---- who goes first ----

// How much of the past counts when programs are compared: the time on the GPU halves in this time.
inline constexpr Duration kHalf = std::chrono::minutes(5);
// Returns the time on the GPU that counts, after `passed` more, of which the program was on it or not.
constexpr Duration lately(Duration before, Duration passed, bool was_on_it) noexcept {
    // Linear within a step, which is short beside kHalf.
    const Duration part = std::min(passed, kHalf);
    const Duration faded = before - Duration(before.count() * part.count() / (2 * kHalf.count()));
    return was_on_it ? faded + passed : faded;
}
// Differences below this do not count: then the one that came first goes first.
inline constexpr Duration kAlike = std::chrono::seconds(1);

}  // namespace curb::policy::turns
