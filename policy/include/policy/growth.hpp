// How the allowance of a process on one device grows, and falls back. Pure: time, books and device come in from
// outside.
//
// The allowance is how much may be held before the cap is reached. It begins at `start`, grows by steps when requests
// need more, and falls back to what is held when memory was released.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "policy/duration.hpp"
#include "policy/size.hpp"

namespace curb::policy {

inline constexpr Bytes kUnbounded = ~Bytes{0};

struct Growth {
    std::optional<Bytes> start{};  // none: there is no allowance below the cap
    Bytes step = 0;                // 0: by the factor
    double factor = 0;  // 0: by the step. Both: whichever grows less (a ceiling may say one, the user the other)
    Duration every{0};
    Bytes keep_free = 0;
    Duration wait{0};
    friend bool operator==(const Growth &, const Growth &) = default;
};

constexpr Bytes added(Bytes a, Bytes b) noexcept { return a > kUnbounded - b ? kUnbounded : a + b; }

// The allowance of a process that has just begun.
constexpr Bytes first_allowance(const Growth &growth) noexcept { return growth.start.value_or(kUnbounded); }

// The allowance after one step more. Whole megabytes of a factor, and at least one: a step that changes nothing would
// be taken for ever.
constexpr Bytes after_step(const Growth &growth, Bytes allowance) noexcept {
    if (!growth.start) return kUnbounded;
    if (growth.step == 0 && growth.factor <= 1) return allowance;
    Bytes next = kUnbounded;
    if (growth.step != 0) next = added(allowance, growth.step);
    if (growth.factor > 1) {
        const double grown = static_cast<double>(allowance) * growth.factor;
        const Bytes whole = grown < 0x1p63 ? static_cast<Bytes>(grown) / MiB * MiB : kUnbounded;
        next = std::min(next, std::max(whole, added(allowance, MiB)));
    }
    return next;
}

// Where the allowance falls back to after a release: to what is held, rounded up to a step, and at least to `start`;
// never to more than it was.
constexpr Bytes fallen_back(const Growth &growth, Bytes allowance, Bytes held) noexcept {
    if (!growth.start) return kUnbounded;
    Bytes covering = *growth.start;
    if (growth.step != 0 && held > covering) {
        const Bytes steps = (held - covering - 1) / growth.step + 1;
        covering = steps > (kUnbounded - covering) / growth.step ? kUnbounded : covering + steps * growth.step;
    } else if (growth.factor > 1) {
        while (covering < held) covering = after_step(growth, covering);
    } else if (growth.step == 0) {
        covering = std::max(covering, held);
    }
    return std::min(allowance, covering);
}

// The allowance under a policy that was edited: as much as there was, and at least the new start. Without an allowance
// before (kUnbounded), as if memory had just been released.
constexpr Bytes after_edit(const Growth &growth, Bytes allowance, Bytes held) noexcept {
    if (!growth.start) return kUnbounded;
    return allowance == kUnbounded ? fallen_back(growth, kUnbounded, held) : std::max(allowance, *growth.start);
}

// Milliseconds until the next step is due; 0: it is. Times are of one clock that never goes back.
constexpr std::uint64_t until_step(const Growth &growth, std::uint64_t now_ms, std::uint64_t last_step_ms) noexcept {
    const auto every = static_cast<std::uint64_t>(growth.every.count());
    const std::uint64_t passed = now_ms - std::min(now_ms, last_step_ms);
    return passed >= every ? 0 : every - passed;
}

// The most that may be held while `keep_free` of the device stays free. `within_reach`: what this process holds of it
// and what is free, as the device itself says at one moment.
constexpr Bytes held_beside(Bytes keep_free, Bytes within_reach) noexcept {
    return within_reach - std::min(within_reach, keep_free);
}

}  // namespace curb::policy
