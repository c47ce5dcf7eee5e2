#include "reconcile.hpp"

#include <algorithm>

#include "clock.hpp"
#include "keep_errno.hpp"
#include "pools.hpp"
#include "trace.hpp"

namespace curb::shim {

void reconcile(Device &device) noexcept {
    const KeepErrno keep_errno;
    device.measured_ms.store(now_ms(), std::memory_order_relaxed);
    device.changed.store(false, std::memory_order_relaxed);
    const bool measured = device.ledger.reconcile(
        [&]() noexcept {
            pools::look_again(device);
            return device.meter.held_by_process();
        },
        [&](std::int64_t change) noexcept { trace::books(device, Kind::overhead, change); });
    if (measured)
        device.blind.store(false, std::memory_order_relaxed);
    else if (device.contexts.load(std::memory_order_relaxed) > 0)
        device.blind.store(true, std::memory_order_relaxed);
}

void measure_reach(Device &device) noexcept {
    const KeepErrno keep_errno;
    // The process's figure on both sides of the other: whatever another thread takes or gives back in between, the sum
    // is then at most too low.
    const auto held = [&] { return device.meter.held_by_process().value_or(device.ledger.held()); };
    device.reach_ms.store(now_ms(), std::memory_order_relaxed);
    const Bytes before = held();
    const auto free = device.meter.free();
    if (free) device.reach.store(policy::added(std::min(before, held()), *free), std::memory_order_relaxed);
}

}  // namespace curb::shim
