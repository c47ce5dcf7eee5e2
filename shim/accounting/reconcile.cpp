#include "accounting/reconcile.hpp"

#include <algorithm>

#include "base/keep_errno.hpp"
#include "host/clock.hpp"
#include "pools/pools.hpp"
#include "trace/trace.hpp"

namespace curb::shim {

void reconcile(Device &device, int attempts) noexcept {
    const KeepErrno keep_errno;
    const std::uint64_t began_us = now_us();
    device.measured_ms.store(now_ms(), std::memory_order_relaxed);
    device.changed.store(false, std::memory_order_relaxed);
    // Count first: a thread that sees `grown` cleared must see that a reconcile is running.
    device.measuring_growth.fetch_add(1, std::memory_order_seq_cst);
    const bool grown =
        device.grown.load(std::memory_order_relaxed) && device.grown.exchange(false, std::memory_order_seq_cst);
    if (!grown) device.measuring_growth.fetch_sub(1, std::memory_order_seq_cst);
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
            const bool holds_nothing =
                device.has_nvml.load(std::memory_order_relaxed) && device.contexts.load(std::memory_order_relaxed) == 0;
            return holds_nothing ? std::optional<Ledger::Measured>(0) : std::nullopt;
        },
        [&](std::int64_t change) noexcept {
            job::overhead_changed(device.ledger.share.row(), change);
            trace::books(device, Kind::overhead, change);
        },
        attempts);
    if (measured)
        device.has_nvml.store(true, std::memory_order_relaxed);
    else if (device.contexts.load(std::memory_order_relaxed) > 0)
        device.has_nvml.store(false, std::memory_order_relaxed);
    device.figure_us.store(began_us, std::memory_order_relaxed);
    if (grown) device.measuring_growth.fetch_sub(1, std::memory_order_seq_cst);
}

void reconcile_unless_fresh(Device &device) noexcept {
    constexpr std::uint64_t kFreshUs = 1000;
    const bool alone = device.measuring.fetch_add(1, std::memory_order_seq_cst) == 0;
    const bool is_fresh = !device.grown.load(std::memory_order_seq_cst) &&
                          device.measuring_growth.load(std::memory_order_seq_cst) == 0 &&
                          now_us() - device.figure_us.load(std::memory_order_relaxed) < kFreshUs;
    // If others reconcile too, one attempt is enough: it raises the overhead, and before a refusal curb reconciles
    // again.
    if (alone || !is_fresh) reconcile(device, alone ? Ledger::kAttempts : 1);
    device.measuring.fetch_sub(1, std::memory_order_seq_cst);
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
    device.reach_ms.store(now_ms(), std::memory_order_relaxed);
    const Bytes before = held();
    const auto free = device.meter.free();
    if (free) device.reach.store(policy::added(std::min(before, held()), *free), std::memory_order_relaxed);
}

void end_import(job::MemoryKey key) noexcept {
    if (job::closed(key)) devices::measure_all_soon();
}

}  // namespace curb::shim
