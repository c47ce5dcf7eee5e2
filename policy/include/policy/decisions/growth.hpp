// How the allowance of a process on one device grows and shrinks. It begins at `start`, grows by steps when requests
// need more, and shrinks to the held memory after a release. Pure: callers pass the time and the ledger's figures.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "policy/values/duration.hpp"
#include "policy/values/size.hpp"

namespace curb::policy {

inline constexpr Bytes kUnbounded = ~Bytes{0};

struct Growth {
    std::optional<Bytes> start{};  // nullopt: the allowance is the cap
    Bytes step = 0;                // 0: grow by the factor
    double factor = 0;             // 0: grow by the step. If both are set (one by a ceiling), the smaller step counts
    Duration every{0};             // the shortest time between two steps
    Bytes keep_free = 0;           // to leave free on the device
    Duration wait{0};              // how long a request waits before it fails
    friend bool operator==(const Growth &, const Growth &) = default;
};

// Adds. Returns kUnbounded instead of overflowing.
constexpr Bytes added(Bytes a, Bytes b) noexcept { return a > kUnbounded - b ? kUnbounded : a + b; }

// Returns the allowance of a new process.
constexpr Bytes first_allowance(const Growth &growth) noexcept { return growth.start.value_or(kUnbounded); }

// Returns the allowance after one more step. A factor adds whole MiB, at least one: requests would repeat a step of 0
// bytes for ever.
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

// Returns the allowance after a release: the held bytes rounded up to a step, at least `start`, at most the allowance
// before.
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

// Returns the allowance after an edit of the policy: the one before, but at least the new start. If there was none
// (kUnbounded): the same as after a release.
constexpr Bytes after_edit(const Growth &growth, Bytes allowance, Bytes held) noexcept {
    if (!growth.start) return kUnbounded;
    return allowance == kUnbounded ? fallen_back(growth, kUnbounded, held) : std::max(allowance, *growth.start);
}

// Returns the milliseconds until the next step is allowed; 0: now. Both times are from one monotonic clock.
constexpr std::uint64_t until_step(const Growth &growth, std::uint64_t now_ms, std::uint64_t last_step_ms) noexcept {
    const auto every = static_cast<std::uint64_t>(growth.every.count());
    const std::uint64_t passed = now_ms - std::min(now_ms, last_step_ms);
    return passed >= every ? 0 : every - passed;
}

// Returns the limit of held memory that leaves `keep_free` free on the device. `within_reach`: the bytes that this
// process holds plus the free bytes of the device, measured at the same moment.
constexpr Bytes held_beside(Bytes keep_free, Bytes within_reach) noexcept {
    return within_reach - std::min(within_reach, keep_free);
}

}  // namespace curb::policy
