#include "admission.hpp"

#include <algorithm>

#include "cache.hpp"
#include "captures.hpp"
#include "clock.hpp"
#include "keep_errno.hpp"
#include "limits.hpp"
#include "log.hpp"
#include "pools.hpp"
#include "pressure.hpp"
#include "reconcile.hpp"
#include "reports.hpp"

namespace curb::shim::admission {
namespace {

using policy::Verdict;

// The same, asking the device first where the books may have drifted. True: it was asked, which takes its time.
// `measured`: the request has just had the device reconciled.
bool measure_if_stale(Device &device, const Snapshot &now, Bytes bytes, policy::Terms &out,
                      bool measured = false) noexcept {
    limits::fill(device, now, out);
    const Snapshot::Gpu &gpu = now.of(device.ordinal);
    if (now.unusable || !gpu.limited()) return false;
    const auto room_under = [&](Bytes limit) {
        const Bytes room = policy::room(limit, out.kept_for_driver, device.ledger.held());
        return room - std::min(room, bytes);
    };
    const auto age = [](std::uint64_t measured_ms) { return now_ms() - measured_ms; };
    bool asked = false;
    if (gpu.terms.growth.keep_free != 0 &&
        policy::measure_reach_again(room_under(out.beside_others), bytes,
                                    age(device.reach_ms.load(std::memory_order_relaxed)))) {
        measure_reach(device);
        asked = true;
    }
    const Bytes limit = policy::limit(out);
    if (limit != policy::kUnbounded) {
        switch (policy::measure_again(room_under(limit), age(device.measured_ms.load(std::memory_order_relaxed)),
                                      device.changed.load(std::memory_order_relaxed))) {
            case policy::Measure::not_yet: break;
            case policy::Measure::soon: devices::measure_soon(device); break;
            case policy::Measure::now:
                if (measured) break;
                reconcile_unless_fresh(device);
                asked = true;
                break;
        }
    }
    if (asked) limits::fill(device, now, out);
    return asked;
}

// By how much a request misses its room; at least one byte.
Bytes shortfall(const policy::Terms &terms, Bytes held, Bytes bytes) noexcept {
    const Bytes beside = terms.beside_others - std::min(terms.beside_others, held);
    const Bytes room = std::min(policy::room(policy::limit(terms), terms.kept_for_driver, held), beside);
    return std::max<Bytes>(bytes - std::min(bytes, room), 1);
}

// Whether the caller gives back what it caches when it is refused once, and asks again: what it then lacks may be what
// it had. The one release that a thread within its framework's allocator can do.
bool presses(Device &device, Bytes bytes, caller_match::Way retry) noexcept {
    return retry != caller_match::Way::none && Pressure::of(device).refuses_growth(device, bytes, retry);
}

// How often those who wait look at what others do to the device; what this process does ends the wait at once.
constexpr std::uint64_t kLookAgainMs = 20;

// Holds a request until something has changed, for `milliseconds` at the most. The snapshot is let go of meanwhile.
template <class Part>
void hold(wait_queue::Wait &wait, Device &device, InUse<Part> &in_use, const Snapshot::Gpu &gpu, Bytes bytes,
          const reports::Met &met, std::uint64_t milliseconds = kLookAgainMs) noexcept {
    if (!wait.began()) reports::waiting(device, gpu, bytes, met);
    if (wait.becomes_long()) reports::waits_long(device, gpu, bytes, met, wait);
    in_use.let_go();
    wait.sleep({device.ordinal, met.kind, bytes, met.why}, milliseconds);
}

}  // namespace

bool reserve_now(Device &device, Kind kind, Bytes bytes) noexcept {
    policy::Terms asked;
    measure_if_stale(device, *process::snapshot(), bytes, asked);
    return device.ledger.reserve(kind, bytes, asked) == Verdict::grant;
}

bool reserve(Device &device, Kind kind, Bytes bytes, caller_match::Way retry, wait_queue::Wait &wait) noexcept {
    bool released = false;
    int from_cache = 0;  // how often the request has had room out of the cache
    for (;;) {
        wait.attempt();
        auto in_use = process::snapshot();
        const Snapshot &now = *in_use;
        const Snapshot::Gpu &gpu = now.of(device.ordinal);
        const policy::Growth &growth = gpu.terms.growth;
        policy::Terms asked;
        // A cap that was lowered meanwhile holds for this request too.
        if (measure_if_stale(device, now, bytes, asked, released) &&
            detail::snapshot.load(std::memory_order_acquire) != &now)
            continue;
        const bool grows = growth.start.has_value();
        const std::uint64_t until_step = grows ? policy::until_step(growth, now_ms(), gpu.allowance.last_step_ms()) : 0;
        asked.step_due = grows && until_step == 0 && policy::after_step(growth, asked.allowance) > asked.allowance;
        asked.release_before_growth = *now.policy.release.before_growth;
        asked.may_wait = wait.left(growth.wait);
        asked.released = released;
        Bytes seen = 0;
        const Verdict verdict = device.ledger.reserve(kind, bytes, asked, &seen);
        // Blocks kept for reuse go before anything else is released, taken or waited for: as much as is missing, and if
        // that did not help, all of them. (A refusal out of hand is of a request that nothing would help.)
        if (verdict != Verdict::grant && verdict != Verdict::refuse && from_cache < 2) {
            const Bytes missing = shortfall(asked, device.ledger.taken(), bytes);
            if (cache::give_up(device, from_cache++ == 0 ? missing : policy::kUnbounded) != 0) continue;
        }
        const auto met = [&] {
            return reports::Met{kind, policy::obstacle_to(asked, seen, bytes), seen, asked.kept_for_driver};
        };
        switch (verdict) {
            case Verdict::grant:
                if (wait.began()) reports::waited(device, kind, bytes, wait);
                return true;
            case Verdict::release_first:
                release_on_the_spot(device);
                reconcile(device);
                released = true;
                break;
            case Verdict::grow:
                if (asked.release_before_growth && presses(device, bytes, retry)) {
                    reports::pressed(device, gpu, bytes, met());
                    return false;
                }
                if (gpu.allowance.step(growth, now_ms())) {
                    reports::allowance(device, "may now hold", gpu.allowance.bytes());
                    wait_queue::changed();
                }
                break;
            case Verdict::wait:
                hold(wait, device, in_use, gpu, bytes, met(),
                     until_step == 0 ? kLookAgainMs : std::min(until_step, kLookAgainMs));
                released = false;
                from_cache = 0;
                break;
            case Verdict::refuse: reports::refusal(device, gpu, bytes, met()); return false;
        }
    }
}

bool wait_for_device(Device &device, Kind kind, Bytes bytes, wait_queue::Wait &wait) noexcept {
    const KeepErrno keep_errno;
    if (bytes > device.total) {  // programs probe for free memory with sizes that no device has
        reports::device_full(device, kind, bytes);
        return false;
    }
    // Where nobody tells what is free, the driver is asked now and then.
    constexpr int kAskAnyway = 25;
    const auto full = [&] { return reports::Met{kind, policy::Obstacle::device, device.ledger.held()}; };
    for (int look = 0; look < kAskAnyway; ++look) {
        auto gpu = limits::in_force(device);
        if (!wait.left(gpu->terms.growth.wait)) {
            if (wait.began())
                reports::refusal(device, *gpu, bytes, full());
            else
                reports::device_full(device, kind, bytes);
            return false;
        }
        wait.attempt();
        hold(wait, device, gpu, *gpu, bytes, full());
        if (cache::give_up(device, bytes) != 0) break;  // of blocks that other threads have freed meanwhile
        if (const auto free = device.meter.free(); free && *free >= bytes) break;
    }
    return true;
}

bool wait_beside_others(Device &device, Kind kind, Bytes bytes) noexcept {
    wait_queue::Wait wait;
    const auto has_room = [&] {
        if (wait.began()) reports::waited(device, kind, bytes, wait);
        return true;
    };
    for (;;) {
        wait.attempt();
        auto gpu = limits::in_force(device);
        if (gpu->terms.growth.keep_free == 0) return has_room();
        measure_reach(device);
        if (policy::added(device.ledger.held(), bytes) <= limits::terms(device, *process::snapshot()).beside_others)
            return has_room();
        if (cache::give_up(device) != 0) continue;
        const reports::Met met{kind, policy::Obstacle::keep_free, device.ledger.held()};
        if (!wait.left(gpu->terms.growth.wait)) {
            reports::refusal(device, *gpu, bytes, met);
            return false;
        }
        hold(wait, device, gpu, *gpu, bytes, met);
    }
}

bool refuses_code(Device &device, Bytes by) noexcept {
    const auto gpu = limits::in_force(device);
    const auto limit = gpu->terms.cap;
    if (!limit) return false;
    const auto above = [&] { return device.ledger.held() > *limit && device.ledger.held() - *limit > by; };
    policy::Terms seen;
    measure_if_stale(device, *process::snapshot(), 0, seen);
    if (above() && release_on_the_spot(device)) reconcile(device);
    if (!above()) return false;
    reports::refusal(device, *gpu, 0, {Kind::overhead, policy::Obstacle::cap, device.ledger.held()});
    return true;
}

bool release_on_the_spot(Device &device) noexcept {
    const KeepErrno keep_errno;
    const RelaxedCapture relaxed;
    const bool from_cache = cache::give_up(device) != 0;
    // A pool gives back only what the host has seen complete; a request that would be refused is worth waiting for the
    // work already queued, as the driver itself does before it reports that it is out of memory.
    captures::synchronise_current_context();
    return pools::trim(device) > 0 || from_cache;
}

void fall_back() noexcept try {
    for (const int ordinal : in_force::fall_back())
        reports::allowance(devices::at(ordinal), "falls back to", process::snapshot()->of(ordinal).allowance.bytes());
} catch (...) {
    log::write(policy::LogLevel::error, "out of host memory: the allowance stays as it is after a release");
}

}  // namespace curb::shim::admission
