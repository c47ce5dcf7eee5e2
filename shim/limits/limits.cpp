#include "limits.hpp"

#include <algorithm>

#include "clock.hpp"
#include "reconcile.hpp"

namespace curb::shim::limits {
policy::Terms terms(const Device &device, const Snapshot &now) noexcept {
    policy::Terms out;
    fill(device, now, out);
    return out;
}

InUse<Snapshot::Gpu> in_force(const Device &device) noexcept {
    return InUse<Snapshot::Gpu>([&](const Snapshot &now) -> const Snapshot::Gpu & { return now.of(device.ordinal); });
}

std::optional<Bytes> cap(const Device &device) noexcept { return in_force(device)->terms.cap; }

bool exceeds_cap(const Device &device) noexcept {
    const auto limit = cap(device);
    return limit && device.ledger.held() > *limit;
}

bool exceeds_grantable(const Device &device) noexcept {
    const policy::Terms now = terms(device, *process::snapshot());
    const Bytes held = device.ledger.taken();
    return !policy::fits(now, policy::limit(now), held, 1) || held > now.limit_beside_others;
}

bool must_shrink(Device &device, const Snapshot &now) noexcept {
    const Snapshot::Gpu &gpu = now.of(device.ordinal);
    if (now.unusable) return true;
    if (!gpu.limited()) return false;
    const Bytes held = device.ledger.held();
    if (held > policy::limit(gpu.terms.cap, gpu.allowance.bytes())) return true;
    const Bytes keep_free = gpu.terms.growth.keep_free;
    if (keep_free == 0) return false;
    if (now_ms() - device.reach_ms.load(std::memory_order_relaxed) >= policy::Staleness::kFarMs) measure_reach(device);
    return held > policy::held_beside(keep_free, devices::within_reach(device));
}

Bytes room(const Device &device, Bytes limit, Bytes returning) noexcept {
    const Bytes held = device.ledger.held();
    return policy::room(limit, kept_for_driver(device, limit), held - std::min(held, returning));
}

}  // namespace curb::shim::limits
