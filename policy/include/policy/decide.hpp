// Whether a request for device memory is granted. Pure: what is held and what is asked come in, a verdict comes out.
#pragma once

#include <cstdint>
#include <optional>

#include "policy/size.hpp"

namespace curb::policy {

// The terms under which one request is judged.
struct Terms {
    std::optional<Bytes> cap;        // ceiling of held memory on the device; none: no ceiling
    Bytes kept_for_driver = 0;       // room under the cap that requests do not get
    bool refuse_everything = false;  // the policy that was named cannot be used
    bool released = false;           // what could be released for this request has been
};

enum class Verdict : std::uint8_t {
    grant,
    release_first,  // no room, but releasing may make some: release, then ask again with Terms::released
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
    const Bytes first = (cap / 8 < kFirstKernels ? cap / 8 : kFirstKernels) + heap;
    const Bytes later = cap / 64 < kLater ? cap / 64 : kLater;
    const Bytes due = first > grown ? first - grown : 0;
    const Bytes kept = due > later ? due : later;
    return kept < cap ? kept : cap;
}

// What is left for requests under the cap.
constexpr Bytes room(Bytes cap, Bytes kept_for_driver, Bytes held) noexcept {
    const Bytes usable = cap - kept_for_driver;
    return held < usable ? usable - held : 0;
}

constexpr Verdict decide(const Terms &terms, Bytes held, Bytes bytes) noexcept {
    if (terms.refuse_everything) return Verdict::refuse;
    if (!terms.cap || bytes == 0) return Verdict::grant;
    if (bytes <= room(*terms.cap, terms.kept_for_driver, held)) return Verdict::grant;
    // More than an empty device would have room for: nothing that could be released would serve it.
    if (bytes > room(*terms.cap, terms.kept_for_driver, 0)) return Verdict::refuse;
    return terms.released ? Verdict::refuse : Verdict::release_first;
}

// How old the device's own figure may be for a decision that would leave `room` bytes under the cap. Asking costs 11 us
// (NVML, H200), so far from the cap it is asked ten times a second at the most; within `kNear` of it at any change a
// program can notice, and for the last bytes always. What the driver takes for itself (code, stacks) grows in steps of
// up to 92 MiB between our calls, so without a cap in sight the books would drift.
struct Staleness {
    static constexpr Bytes kNear = 512 * MiB;
    static constexpr Bytes kLast = 64 * MiB;
    static constexpr std::uint64_t kFarMs = 100;
    static constexpr std::uint64_t kNearMs = 2;
};
// `changed`: something was done since in which the driver may take memory of its own.
constexpr bool measure_again(Bytes room, std::uint64_t age_ms, bool changed) noexcept {
    if (room < Staleness::kLast || (changed && room < Staleness::kNear)) return true;
    return age_ms >= (room < Staleness::kNear ? Staleness::kNearMs : Staleness::kFarMs);
}

}  // namespace curb::policy
