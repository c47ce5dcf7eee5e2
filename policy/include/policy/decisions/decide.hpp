// Decides whether to grant a request for device memory. Pure: callers pass the ledger's figures and get a verdict.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "policy/decisions/growth.hpp"
#include "policy/values/size.hpp"

namespace curb::policy {

// The limits of one request.
struct Terms {
    std::optional<Bytes> cap{};              // limit of held memory on the device; nullopt: no cap
    Bytes allowance = kUnbounded;            // the part of the cap that growth has opened
    Bytes job_cap = 0;                       // cap of the job, which limits `cap` too; 0: none
    Bytes alone = 0;                         // with a job cap: `cap` if the job's other processes held nothing
    Bytes kept_for_driver = 0;               // kept free under cap and allowance for the driver's own memory
    Bytes limit_beside_others = kUnbounded;  // limit of held memory that leaves keep_free free on the device
    Bytes ever = kUnbounded;                 // limit of a single request: the device, if it were empty
    bool refuse_everything = false;          // the policy file is invalid
    bool by_job = false;                     // `cap` follows from the job's cap, not from the process's own
    bool release_before_growth = true;       // try a release before a growth step
    bool step_due = false;                   // a growth step is allowed now
    bool may_wait = false;                   // the request has time left to wait
    bool released = false;                   // a release has already run for this request
};

enum class Verdict : std::uint8_t {
    grant,
    release_first,  // release, then decide again with Terms::released
    grow,           // take the growth step that is due, then decide again
    wait,           // decide again when memory has been freed
    refuse,
};

// Returns the bytes to keep for memory that the driver takes outside of requests: code that it loads at a kernel's
// first launch, the heap of kernels that call malloc. `grown`: bytes of it that the driver has already taken. `heap`:
// bytes of heap that the program has asked for beyond the default.
//
// The first kernels take most of it (on an H200: 64 MiB for a module that prints, 138 for one that allocates, 92 for
// PyTorch's first kernel, 232 for its first training step). Later kernels take small steps. A program that has filled
// its cap to the last byte would still exceed it by them (JAX: by 10 MiB).
inline constexpr Bytes kFirstKernels = 160 * MiB;
constexpr Bytes driver_reserve(Bytes cap, Bytes grown, Bytes heap) noexcept {
    constexpr Bytes kLater = 32 * MiB;
    const Bytes first = added(std::min(cap / 8, kFirstKernels), heap);
    const Bytes later = cap / 64 < kLater ? cap / 64 : kLater;
    const Bytes due = first > grown ? first - grown : 0;
    const Bytes kept = due > later ? due : later;
    return kept < cap ? kept : cap;
}

// The cost of a context, until it has been measured: the figure of an H100 and an H200.
inline constexpr Bytes kContext = 518 * MiB;

// Returns the bytes that requests may still take under the cap.
constexpr Bytes room(Bytes cap, Bytes kept_for_driver, Bytes held) noexcept {
    const Bytes usable = cap - std::min(cap, kept_for_driver);
    return held < usable ? usable - held : 0;
}

// Returns the limit of held memory now; kUnbounded if there is none.
constexpr Bytes limit(std::optional<Bytes> cap, Bytes allowance) noexcept {
    return std::min(allowance, cap.value_or(kUnbounded));
}
constexpr Bytes limit(const Terms &terms) noexcept { return limit(terms.cap, terms.allowance); }

// Limits `terms` by the job's cap. A cap of 0 counts as 1 byte, because Terms::job_cap 0 means none. `others`: bytes
// that the other processes of the job hold or keep for the driver. May be called again for the same terms with newer
// `others`.
constexpr void lay_job_over(Terms &terms, Bytes job_cap, Bytes others) noexcept {
    const Bytes usable = std::max<Bytes>(job_cap, 1);
    if (terms.job_cap == 0) terms.alone = std::min(usable, terms.cap.value_or(kUnbounded));
    terms.job_cap = usable;
    const Bytes left = usable - std::min(usable, others);
    terms.by_job = left < terms.alone || usable <= terms.alone;
    terms.cap = std::min(terms.alone, left);
}

// True if `bytes` more fit under `limit` less the part kept for the driver.
constexpr bool fits(const Terms &terms, Bytes limit, Bytes held, Bytes bytes) noexcept {
    return limit == kUnbounded || bytes <= room(limit, terms.kept_for_driver, held);
}

// True if `bytes` would not even fit if nothing else was held, so that no release, growth or wait can help.
constexpr bool never_fits(const Terms &terms, Bytes bytes) noexcept {
    const Bytes limit = terms.job_cap != 0 ? terms.alone : terms.cap.value_or(kUnbounded);
    return !fits(terms, limit, 0, bytes) || bytes > terms.ever;
}

// Decides on a request for `bytes` while the process holds `held`. After any verdict but `grant` and `refuse` the
// caller does what the verdict says and decides again.
constexpr Verdict decide(const Terms &terms, Bytes held, Bytes bytes) noexcept {
    if (terms.refuse_everything) return Verdict::refuse;
    if (bytes == 0) return Verdict::grant;
    const bool under_cap = fits(terms, terms.cap.value_or(kUnbounded), held, bytes);
    const bool leaves_free = terms.limit_beside_others == kUnbounded || added(held, bytes) <= terms.limit_beside_others;
    if (under_cap && leaves_free && fits(terms, terms.allowance, held, bytes)) return Verdict::grant;
    if (never_fits(terms, bytes)) return Verdict::refuse;
    const bool may_grow = under_cap && leaves_free && terms.step_due;
    if (!terms.released && (terms.release_before_growth || !may_grow)) return Verdict::release_first;
    if (may_grow) return Verdict::grow;
    return terms.may_wait ? Verdict::wait : Verdict::refuse;
}

// How old NVML's figure may be for a decision that would leave `room` bytes under the cap. The driver takes memory of
// its own (code, stacks) in steps of up to 92 MiB between our calls, so the ledger is too low until curb measures. That
// costs 11 us (H200), and more while other processes ask NVML or make contexts. So curb measures:
//   far from the cap      every kFarMs on its worker; after kFarthestMs on the calling thread
//   within kNear of it    every kNearMs, and at once after a change
//   within kLast of it    for each decision
struct Staleness {
    static constexpr Bytes kNear = 512 * MiB;
    static constexpr Bytes kLast = 64 * MiB;
    static constexpr std::uint64_t kFarMs = 100;
    static constexpr std::uint64_t kFarthestMs = 1000;
    static constexpr std::uint64_t kNearMs = 2;
};
enum class Measure { not_yet, soon, now };  // soon: on the worker; now: on the calling thread
// `changed`: since the last measurement the program made a call for which the driver may take memory of its own.
constexpr Measure measure_again(Bytes room, std::uint64_t age_ms, bool changed) noexcept {
    if (room < Staleness::kLast || (changed && room < Staleness::kNear)) return Measure::now;
    if (room < Staleness::kNear) return age_ms >= Staleness::kNearMs ? Measure::now : Measure::not_yet;
    if (age_ms < Staleness::kFarMs) return Measure::not_yet;
    return age_ms < Staleness::kFarthestMs ? Measure::soon : Measure::now;
}

// True if the device's free bytes must be measured again for a request of `bytes` that would leave `room` bytes above
// keep_free. Other processes can take any amount at any time, so only small requests (1 us each from a pool) may use an
// earlier figure.
constexpr bool measure_reach_again(Bytes room, Bytes bytes, std::uint64_t age_ms) noexcept {
    return room < Staleness::kLast || bytes >= Staleness::kLast || age_ms >= Staleness::kNearMs;
}

}  // namespace curb::policy
