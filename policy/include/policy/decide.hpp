// Whether a request for device memory is granted. Pure: what is held and what is asked come in, a verdict comes out.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "policy/growth.hpp"
#include "policy/size.hpp"

namespace curb::policy {

// The terms under which one request is judged.
struct Terms {
    std::optional<Bytes> cap{};         // ceiling of held memory on the device; none: no ceiling
    Bytes allowance = kUnbounded;       // how much of it may be held before the next growth step
    Bytes kept_for_driver = 0;          // room under both that requests do not get
    Bytes beside_others = kUnbounded;   // the most that may be held while the device keeps what is to stay free of it
    Bytes ever = kUnbounded;            // the most that the device could give if nobody else held anything of it
    bool refuse_everything = false;     // the policy that was named cannot be used
    bool release_before_growth = true;  // a release comes before a growth step
    bool step_due = false;              // the next growth step may be taken now
    bool may_wait = false;              // there is time left in which room may appear
    bool released = false;              // what could be released for this request has been
};

enum class Verdict : std::uint8_t {
    grant,
    release_first,  // no room, but releasing may make some: release, then ask again with Terms::released
    grow,           // take the growth step that is due, then ask again
    wait,           // no room now: ask again when something has changed
    refuse,
};

// Room that is kept for what the driver takes by itself, at moments that no request shows: code that it loads at a
// kernel's first launch, the heap of kernels that call malloc. `grown`: what it has taken so already. `heap`: how much
// more than by default the program has asked to have for the heap.
//
// The first kernels take most of it (measured on an H200: 64 MiB for a module that prints, 138 for one that allocates,
// 92 for PyTorch's first kernel, 232 for its first training step), so as much is kept until it has been taken. Later
// ones come in small steps; but a program that had filled its cap to the last byte would still be pushed over it by its
// next new kernel (JAX, by 10 MiB).
inline constexpr Bytes kFirstKernels = 160 * MiB;
constexpr Bytes driver_reserve(Bytes cap, Bytes grown, Bytes heap) noexcept {
    constexpr Bytes kLater = 32 * MiB;
    const Bytes first = added(std::min(cap / 8, kFirstKernels), heap);
    const Bytes later = cap / 64 < kLater ? cap / 64 : kLater;
    const Bytes due = first > grown ? first - grown : 0;
    const Bytes kept = due > later ? due : later;
    return kept < cap ? kept : cap;
}

// What is left for requests under the cap.
constexpr Bytes room(Bytes cap, Bytes kept_for_driver, Bytes held) noexcept {
    const Bytes usable = cap - std::min(cap, kept_for_driver);
    return held < usable ? usable - held : 0;
}

// The ceiling of held memory at this moment; kUnbounded: none.
constexpr Bytes limit(std::optional<Bytes> cap, Bytes allowance) noexcept {
    return std::min(allowance, cap.value_or(kUnbounded));
}
constexpr Bytes limit(const Terms &terms) noexcept { return limit(terms.cap, terms.allowance); }

// Whether `bytes` more fit under `limit`, kept room left out.
constexpr bool fits(const Terms &terms, Bytes limit, Bytes held, Bytes bytes) noexcept {
    return limit == kUnbounded || bytes <= room(limit, terms.kept_for_driver, held);
}

constexpr Verdict decide(const Terms &terms, Bytes held, Bytes bytes) noexcept {
    if (terms.refuse_everything) return Verdict::refuse;
    if (bytes == 0) return Verdict::grant;
    const Bytes cap = terms.cap.value_or(kUnbounded);
    const bool under_cap = fits(terms, cap, held, bytes);
    const bool beside_others = terms.beside_others == kUnbounded || added(held, bytes) <= terms.beside_others;
    if (under_cap && beside_others && fits(terms, terms.allowance, held, bytes)) return Verdict::grant;
    // More than an empty device would have room for: nothing that is released, grows or ends would serve it.
    if (!fits(terms, cap, 0, bytes) || bytes > terms.ever) return Verdict::refuse;
    const bool may_grow = under_cap && beside_others && terms.step_due;
    if (!terms.released && (terms.release_before_growth || !may_grow)) return Verdict::release_first;
    if (may_grow) return Verdict::grow;
    return terms.may_wait ? Verdict::wait : Verdict::refuse;
}

// How old the device's own figure may be for a decision that would leave `room` bytes under the cap. Asking costs 11 us
// (NVML, H200) and more while others ask it too or make contexts, so far from the cap it is asked ten times a second at
// the most, and by another thread, unless that one does not come to it; within `kNear` of it at any change a program
// can notice, and for the last bytes always. What the driver takes for itself (code, stacks) grows in steps of up to 92
// MiB between our calls, so without a cap in sight the books would drift.
struct Staleness {
    static constexpr Bytes kNear = 512 * MiB;
    static constexpr Bytes kLast = 64 * MiB;
    static constexpr std::uint64_t kFarMs = 100;
    static constexpr std::uint64_t kFarthestMs = 1000;
    static constexpr std::uint64_t kNearMs = 2;
};
enum class Measure { not_yet, soon, now };
// `changed`: something was done since in which the driver may take memory of its own.
constexpr Measure measure_again(Bytes room, std::uint64_t age_ms, bool changed) noexcept {
    if (room < Staleness::kLast || (changed && room < Staleness::kNear)) return Measure::now;
    if (room < Staleness::kNear) return age_ms >= Staleness::kNearMs ? Measure::now : Measure::not_yet;
    if (age_ms < Staleness::kFarMs) return Measure::not_yet;
    return age_ms < Staleness::kFarthestMs ? Measure::soon : Measure::now;
}

// How old the figure of what is free of the device may be for a request of `bytes` that would leave `room` until others
// have less than is kept for them. What others do shows in nothing else, so far from it is asked as often as near; only
// small requests (of a pool: 1 us each on the bare driver) go by an earlier look.
constexpr bool measure_reach_again(Bytes room, Bytes bytes, std::uint64_t age_ms) noexcept {
    return room < Staleness::kLast || bytes >= Staleness::kLast || age_ms >= Staleness::kNearMs;
}

}  // namespace curb::policy
