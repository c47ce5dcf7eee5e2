// Whether a request for device memory is granted. Pure: what is held and what is asked come in, a verdict comes out.
#pragma once

#include <cstdint>
#include <optional>

#include "policy/size.hpp"

namespace curb::policy {

// The terms under which one request is judged.
struct Terms {
    std::optional<Bytes> cap;        // ceiling of held memory on the device; none: no ceiling
    bool refuse_everything = false;  // the policy that was named cannot be used
    bool released = false;           // what could be released for this request has been
};

enum class Verdict : std::uint8_t {
    grant,
    release_first,  // no room, but releasing may make some: release, then ask again with Terms::released
    refuse,
};

// Room under a cap that requests do not get. The driver takes memory of its own at moments that no request shows: code
// that it loads at a kernel's first launch, a stack that has to grow. A program that had filled its cap to the last
// byte would be pushed over it by its next new kernel (measured on an H200: JAX 10 MiB over, 2 MiB a module).
constexpr Bytes driver_reserve(Bytes cap) noexcept {
    constexpr Bytes kMost = 32 * MiB;
    return cap / 64 < kMost ? cap / 64 : kMost;
}

// What is left for requests under the cap.
constexpr Bytes room(Bytes cap, Bytes held) noexcept {
    const Bytes usable = cap - driver_reserve(cap);
    return held < usable ? usable - held : 0;
}

constexpr Verdict decide(const Terms &terms, Bytes held, Bytes bytes) noexcept {
    if (terms.refuse_everything) return Verdict::refuse;
    if (!terms.cap || bytes == 0) return Verdict::grant;
    if (bytes <= room(*terms.cap, held)) return Verdict::grant;
    // More than an empty device would have room for: nothing that could be released would serve it.
    if (bytes > room(*terms.cap, 0)) return Verdict::refuse;
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
constexpr bool measure_again(Bytes room, std::uint64_t age_ms) noexcept {
    if (room < Staleness::kLast) return true;
    return age_ms >= (room < Staleness::kNear ? Staleness::kNearMs : Staleness::kFarMs);
}

}  // namespace curb::policy
