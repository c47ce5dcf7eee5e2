#include "accounting/reconcile.hpp"

#include <algorithm>

#include "base/keep_errno.hpp"
#include "pools/pools.hpp"
#include "trace/trace.hpp"

namespace curb::shim {

void reconcile(Device &device, int attempts) noexcept {
    const KeepErrno keep_errno;
    const Freshness::Reconciling reconciling(device.freshness);
    const bool measured = device.ledger.reconcile(
        [&]() noexcept -> std::optional<Ledger::Measured> {
            const std::uint64_t takes = device.ledger.ahead().takes;
            const bool rested = !pools::ahead_under_way(device);
            pools::reconcile(device);
            if (const auto figure = device.meter.held_by_process()) {
                // Growth of pools by requests since then is not the driver's own memory.
                const Ledger::Ahead ahead = device.ledger.ahead();
                return Ledger::Measured(*figure - std::min(*figure, ahead.unread()), rested && takes == ahead.takes);
            }
            // NVML does not list a process whose last context has ended.
            const bool holds_nothing = device.has_nvml && device.contexts.live == 0;
            return holds_nothing ? std::optional<Ledger::Measured>(0) : std::nullopt;
        },
        [&](std::int64_t change) noexcept {
            job::overhead_changed(device.ledger.share.row(), change);
            trace::books(device, Kind::overhead, change);
        },
        attempts);
    if (measured)
        device.has_nvml = true;
    else if (device.contexts.live > 0)
        device.has_nvml = false;
}

void reconcile_unless_fresh(Device &device) noexcept {
    const Freshness::NearCap request(device.freshness);
    // If others reconcile too, one attempt is enough: it raises the overhead, and before a refusal curb reconciles
    // again.
    if (request.is_alone() || !request.is_fresh()) reconcile(device, request.is_alone() ? Ledger::kAttempts : 1);
}

void driver_may_have_taken(Device &device) noexcept {
    devices::measure_before_decision(device);
    if (trace::on()) reconcile_unless_fresh(device);
}

void measure_reach(Device &device) noexcept {
    const KeepErrno keep_errno;
    // Read the process's figure before and after the free one and use the smaller: if another thread allocates or frees
    // in between, the sum can only be too low.
    const auto held = [&] { return device.meter.held_by_process().value_or(device.ledger.held()); };
    device.freshness.note_reach_asked();
    const Bytes before = held();
    const auto free = device.meter.free();
    if (free) device.freshness.set_reach(policy::added(std::min(before, held()), *free));
}

void end_import(job::MemoryKey key) noexcept {
    if (job::closed(key)) devices::measure_all_soon();
}

}  // namespace curb::shim
