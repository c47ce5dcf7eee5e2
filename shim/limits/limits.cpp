#include "limits/limits.hpp"

#include <algorithm>

#include "accounting/reconcile.hpp"

namespace curb::shim::limits {
namespace {

void lay_job_over(const Device &device, const Snapshot::Gpu &gpu, policy::Terms &out) noexcept {
    if (!gpu.terms.job_cap) return;
    const Bytes own = policy::limit(out);
    if (!device.ledger.share.joined()) {  // the job's ledger cannot be used: the others' bytes are unknown
        policy::lay_job_over(out, 0, 0);
        return;
    }
    policy::lay_job_over(out, *gpu.terms.job_cap, device.ledger.share.others());
    // By the whole cap of the job: what a process keeps does not depend on what the others hold now.
    out.kept_for_driver = kept_for_driver(device, std::min(own, *gpu.terms.job_cap));
}

}  // namespace

std::optional<Bytes> cap(const Device &device, const Snapshot::Gpu &gpu) noexcept {
    if (!gpu.terms.job_cap) return gpu.terms.cap;
    policy::Terms out;
    out.cap = gpu.terms.cap;
    lay_job_over(device, gpu, out);
    return out.cap;
}

void lay_others_over(const Device &device, const Snapshot::Gpu &gpu, policy::Terms &out) noexcept {
    if (gpu.terms.growth.keep_free != 0)
        out.limit_beside_others = policy::held_beside(gpu.terms.growth.keep_free, device.freshness.reach());
    lay_job_over(device, gpu, out);
}

void update_job(const Device &device) noexcept {
    if (!device.ledger.share.joined()) return;
    const auto gpu = in_force(device);
    const bool keeps = gpu->terms.job_cap && devices::in_use(device);
    device.ledger.share.keep(
        keeps ? kept_for_driver(device,
                                std::min(policy::limit(gpu->terms.cap, gpu->allowance.bytes()), *gpu->terms.job_cap))
              : 0);
}

policy::Terms terms(const Device &device, const Snapshot &now) noexcept {
    policy::Terms out;
    fill(device, now, out);
    return out;
}

InUse<Snapshot::Gpu> in_force(const Device &device) noexcept {
    return InUse<Snapshot::Gpu>([&](const Snapshot &now) -> const Snapshot::Gpu & { return now.of(device.ordinal); });
}

std::optional<Bytes> cap(const Device &device) noexcept { return cap(device, *in_force(device)); }

bool exceeds_cap(const Device &device) noexcept {
    const auto limit = cap(device);
    return limit && device.ledger.held() > *limit;
}

bool exceeds_grantable(const Device &device) noexcept {
    const policy::Terms now = terms(device, *in_force::snapshot());
    const Bytes held = device.ledger.held_until_sync();
    return !policy::fits(now, policy::limit(now), held, 1) || held > now.limit_beside_others;
}

bool must_shrink(Device &device, const Snapshot &now) noexcept {
    const Snapshot::Gpu &gpu = now.of(device.ordinal);
    if (now.unusable) return true;
    if (!gpu.limited()) return false;
    const Bytes held = device.ledger.held();
    if (held > policy::limit(cap(device, gpu), gpu.allowance.bytes())) return true;
    const Bytes keep_free = gpu.terms.growth.keep_free;
    if (keep_free == 0) return false;
    if (device.freshness.reach_age_ms() >= policy::Staleness::kFarMs) measure_reach(device);
    return held > policy::held_beside(keep_free, device.freshness.reach());
}

Bytes room(const Device &device, Bytes limit, Bytes returning) noexcept {
    const Bytes held = device.ledger.held();
    return policy::room(limit, kept_for_driver(device, limit), held - std::min(held, returning));
}

}  // namespace curb::shim::limits
