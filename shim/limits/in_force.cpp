#include "limits/in_force.hpp"

#include <algorithm>
#include <mutex>
#include <utility>

#include "base/lifetime.hpp"
#include "device/devices.hpp"
#include "host/clock.hpp"
#include "policy/live_caps.hpp"

namespace curb::shim {

constinit std::atomic<const Snapshot *> detail::snapshot{nullptr};
constinit std::atomic<bool> detail::limited{false}, detail::caches{false};

void Allowance::begin(Bytes bytes, std::uint64_t last_step_ms) noexcept {
    bytes_.store(bytes, std::memory_order_relaxed);
    stepped_ms_.store(last_step_ms, std::memory_order_relaxed);
}

bool Allowance::step(const policy::Growth &growth, std::uint64_t now_ms) noexcept {
    const std::scoped_lock lock(mutex_);
    if (policy::until_step(growth, now_ms, last_step_ms()) != 0) return false;
    stepped_ms_.store(now_ms, std::memory_order_release);
    bytes_.store(policy::after_step(growth, bytes()), std::memory_order_release);
    return true;
}

bool Allowance::fall_back(const policy::Growth &growth, Bytes held, std::uint64_t now_ms) noexcept {
    const std::scoped_lock lock(mutex_);
    const Bytes before = bytes(), after = policy::fallen_back(growth, before, held);
    if (after == before) return false;
    stepped_ms_.store(now_ms, std::memory_order_release);
    bytes_.store(after, std::memory_order_release);
    return true;
}

namespace {

constinit std::atomic<const config::Source *> from{nullptr};

// Held by a thread that publishes.
constinit std::mutex publishing;

// Guarded by `publishing`. Never destroyed.
policy::LiveCaps &live_caps() noexcept { return leaked<policy::LiveCaps>(); }

// Replaced snapshots. Guarded by `publishing`. Never destroyed.
struct Replaced {
    std::vector<std::unique_ptr<const Snapshot>> waiting, leaving;  // for the next grace period; for the current one
};
Replaced &replaced() noexcept { return leaked<Replaced>(); }

// Frees the snapshots that no thread uses. The others wait for the next publish(), so curb keeps at most the snapshots
// replaced during the longest use.
void free_replaced() noexcept {
    Replaced &all = replaced();
    if (!all.leaving.empty() && readers::Grace::is_over()) all.leaving.clear();
    if (!all.leaving.empty() || all.waiting.empty() || !readers::Grace::begin()) return;
    all.leaving.swap(all.waiting);
    if (readers::Grace::is_over()) all.leaving.clear();
}

// The caller holds `publishing`. Throws std::bad_alloc before anything changes.
void put_in_force(std::unique_ptr<const Snapshot> next) {
    replaced().waiting.reserve(replaced().waiting.size() + 1);
    bool some_limited = false;
    for (Device &device : devices::all()) {
        const bool limited = next->of(device.ordinal).limited();
        device.limited.store(limited, std::memory_order_relaxed);
        some_limited |= limited;
    }
    detail::limited.store(some_limited, std::memory_order_relaxed);
    detail::caches.store(next->caches, std::memory_order_relaxed);
    const Snapshot *before = detail::snapshot.exchange(next.release(), std::memory_order_acq_rel);
    // Bytes that were reserved ahead were granted under the old limits.
    for (Device &device : devices::all()) device.ledger.ahead().take_back();
    if (before) replaced().waiting.emplace_back(before);
    free_replaced();
}

// nvidia-smi's index is included only where it is already known.
std::vector<policy::GpuIdentity> identities() {
    std::vector<policy::GpuIdentity> gpus;
    for (const Device &device : devices::all()) {
        gpus.push_back({device.ordinal, device.meter.known_index(), device.pci.data(), device.meter.gpu_uuid(),
                        device.meter.mig_uuid()});
    }
    return gpus;
}

// The allowance continues from the previous snapshot's.
void begin_allowance(const Snapshot::Gpu &gpu, const Snapshot *before, const Device &device) noexcept {
    const policy::Growth &growth = gpu.terms.growth;
    if (!before) return gpu.allowance.begin(policy::first_allowance(growth), now_ms());
    const Allowance &old = before->of(device.ordinal).allowance;
    gpu.allowance.begin(policy::after_edit(growth, old.bytes(), device.ledger.held()), old.last_step_ms());
}

// Builds the snapshot for a version and live caps. `own`, `ceiling`: its rules, matched with the devices.
std::unique_ptr<Snapshot> build(std::shared_ptr<const Version> version, const policy::LiveCaps &caps,
                                const std::vector<policy::GpuIdentity> &gpus, const policy::Matched &own,
                                const policy::Matched &ceiling) {
    auto out = std::make_unique<Snapshot>(std::move(version));
    const Snapshot *before = detail::snapshot.load(std::memory_order_acquire);
    out->gpus = std::make_unique<Snapshot::Gpu[]>(gpus.size());
    policy::Policy applied = out->policy;
    applied.gpu = own.rules;
    applied.ceiling = ceiling.rules;
    for (std::size_t i = 0; i < gpus.size(); ++i) {
        const Device &device = devices::at(gpus[i].ordinal);
        Snapshot::Gpu &gpu = out->gpus[i];
        gpu.live_cap = caps.of(i, gpus[i]);
        gpu.terms = policy::terms_for(applied, gpus[i], device.total, gpu.live_cap, device.ledger.share.live_cap());
        gpu.beside_others = gpu.terms.job_cap || gpu.terms.growth.keep_free != 0;
        begin_allowance(gpu, before, device);
        out->caches |= gpu.terms.cache.max != 0;
    }
    return out;
}

// The same for the version in force.
std::unique_ptr<Snapshot> build(const Snapshot &before, const policy::LiveCaps &caps,
                                const std::vector<policy::GpuIdentity> &gpus) {
    return build(before.kept, caps, gpus, policy::match(before.policy.gpu, gpus),
                 policy::match(before.policy.ceiling, gpus));
}

}  // namespace

namespace in_force {

const config::Source &source() noexcept { return *from.load(std::memory_order_acquire); }

void set_source(const config::Source *source) noexcept { from.store(source, std::memory_order_release); }

Lines publish(Version version) {
    if (policy::needs_nvml_index(version.policy)) find_indexes();
    const std::vector<policy::GpuIdentity> gpus = identities();
    const policy::Matched own = policy::match(version.policy.gpu, gpus),
                          ceiling = policy::match(version.policy.ceiling, gpus);
    const auto kept = std::make_shared<const Version>(std::move(version));
    bool some_without_cap = false;
    {
        const std::scoped_lock lock(publishing);
        auto next = build(kept, live_caps(), gpus, own, ceiling);
        for (std::size_t i = 0; i < gpus.size(); ++i) some_without_cap |= !next->gpus[i].terms.cap;
        put_in_force(std::move(next));
    }
    Lines out;
    for (const std::string &why : own.ambiguous) out.push_back({policy::LogLevel::warning, why});
    for (const std::string &why : ceiling.ambiguous) out.push_back({policy::LogLevel::warning, "ceiling: " + why});
    // A key without a match is normal: one file may serve processes that see different devices. But warn if a device
    // has no cap, because the key may have meant that one.
    const auto level = some_without_cap ? policy::LogLevel::warning : policy::LogLevel::info;
    for (const std::string &why : own.unmatched) out.push_back({level, why});
    return out;
}

constexpr const char *kUnusable =
    "its policy cannot be used, so everything is refused whatever the cap; fix the policy, which is read at once "
    "(curb ps PID prints what is wrong with it)";

policy::Result<control::CapReport, control::Failure> set_cap(const policy::GpuKey &key,
                                                             std::optional<policy::Size> cap) {
    const std::vector<policy::GpuIdentity> gpus = identities();
    const std::scoped_lock lock(publishing);
    const Snapshot &before = *detail::snapshot.load(std::memory_order_acquire);  // not freed while we hold the lock
    if (before.unusable) return control::Failure{kUnusable};
    policy::LiveCaps caps = live_caps();
    const auto named = caps.set(key, cap, gpus);
    if (!named) return control::Failure{named.error()};
    auto next = build(before, caps, gpus);
    control::CapReport out;
    bool changes = false;
    for (const std::size_t i : *named) {
        const Snapshot::Gpu &was = before.gpus[i], &is = next->gpus[i];
        const Device &device = devices::at(gpus[i].ordinal);
        out.gpus.push_back({gpus[i].ordinal, device.meter.uuid(), was.terms.cap, is.terms.cap, is.live_cap,
                            is.terms.ceiling, device.ledger.held()});
        changes |= was.terms != is.terms || was.live_cap != is.live_cap;
    }
    if (changes) put_in_force(std::move(next));
    live_caps() = std::move(caps);
    return out;
}

policy::Result<control::CapReport, control::Failure> set_job_cap(const policy::GpuKey &key,
                                                                 std::optional<policy::Size> cap) {
    const std::vector<policy::GpuIdentity> gpus = identities();
    const std::scoped_lock lock(publishing);
    const Snapshot &before = *detail::snapshot.load(std::memory_order_acquire);  // not freed while we hold the lock
    if (before.unusable) return control::Failure{kUnusable};
    const auto named = policy::LiveCaps().set(key, cap, gpus);
    if (!named) return control::Failure{named.error()};
    for (const std::size_t i : *named)
        if (!devices::at(gpus[i].ordinal).ledger.share.joined())
            return control::Failure{
                "it is in no job with a cap; job.cap, curb run --job-cap and CURB_JOB_CAP begin one"};
    for (const std::size_t i : *named) {
        const Device &device = devices::at(gpus[i].ordinal);
        device.ledger.share.set_live_cap(cap ? std::optional(cap->on(device.total)) : std::nullopt);
    }
    auto next = build(before, live_caps(), gpus);
    control::CapReport out;
    for (const std::size_t i : *named) {
        const Snapshot::Gpu &was = before.gpus[i], &is = next->gpus[i];
        const Device &device = devices::at(gpus[i].ordinal);
        out.gpus.push_back({gpus[i].ordinal, device.meter.uuid(), was.terms.job_cap, is.terms.job_cap, cap,
                            is.terms.job_ceiling, device.ledger.share.held_by_all()});
    }
    put_in_force(std::move(next));
    return out;
}

bool take_job_caps() {
    const std::vector<policy::GpuIdentity> gpus = identities();
    const std::scoped_lock lock(publishing);
    const Snapshot *before = detail::snapshot.load(std::memory_order_acquire);
    if (!before) return false;
    auto next = build(*before, live_caps(), gpus);
    bool changes = false;
    for (std::size_t i = 0; i < gpus.size(); ++i) changes |= before->gpus[i].terms != next->gpus[i].terms;
    if (changes) put_in_force(std::move(next));
    return changes;
}

bool needs_indexes(const policy::GpuKey &key) noexcept {
    if (key.kind != policy::GpuKey::Kind::nvml) return false;
    const auto all = devices::all();
    return std::any_of(all.begin(), all.end(), [](const Device &device) { return !device.meter.known_index(); });
}

void find_indexes() noexcept {
    for (Device &device : devices::all()) device.meter.index();
}

std::vector<int> fall_back() {
    std::vector<int> out;
    const std::scoped_lock lock(publishing);  // so that the snapshot is not replaced meanwhile
    const auto now = process::snapshot();
    for (Device &device : devices::all()) {
        const Snapshot::Gpu &gpu = now->of(device.ordinal);
        if (!gpu.allowance.fall_back(gpu.terms.growth, device.ledger.held(), now_ms())) continue;
        device.ledger.ahead().take_back();
        out.push_back(device.ordinal);
    }
    return out;
}

}  // namespace in_force
}  // namespace curb::shim
