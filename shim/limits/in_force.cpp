#include "limits/in_force.hpp"

#include <algorithm>
#include <mutex>
#include <utility>

#include "base/lifetime.hpp"
#include "device/devices.hpp"
#include "host/clock.hpp"
#include "policy/live_caps.hpp"

namespace curb::shim {

void Allowance::set(Bytes bytes, std::uint64_t stepped_ms) noexcept {
    stepped_ms_ = stepped_ms;
    bytes_ = bytes;
}

void Allowance::begin(Bytes bytes, std::uint64_t last_step_ms) noexcept { set(bytes, last_step_ms); }

bool Allowance::step(const policy::Growth &growth, std::uint64_t now_ms) noexcept {
    const std::scoped_lock lock(mutex_);
    if (policy::until_step(growth, now_ms, last_step_ms()) != 0) return false;
    set(policy::after_step(growth, bytes()), now_ms);
    return true;
}

bool Allowance::fall_back(const policy::Growth &growth, Bytes held, std::uint64_t now_ms) noexcept {
    const std::scoped_lock lock(mutex_);
    const Bytes before = bytes(), after = policy::fallen_back(growth, before, held);
    if (after == before) return false;
    set(after, now_ms);
    return true;
}

namespace {

// What publishing threads share. Never destroyed.
struct Published {
    std::mutex mutex;
    policy::LiveCaps live_caps;
    // Replaced snapshots: for the next grace period; for the current one.
    std::vector<std::unique_ptr<const Snapshot>> waiting, leaving;
};

// The right to publish, which one thread has at a time. Its lock is not a leaf: the ledgers' and the readers' are taken
// under it.
class Publishing : NoCopy {
  public:
    [[nodiscard]] policy::LiveCaps &live_caps() noexcept { return all_.live_caps; }
    // Returns the snapshot in force; null before the first. It is not freed while this object lives.
    [[nodiscard]] const Snapshot *before() const noexcept { return before_; }
    // At most once. Throws std::bad_alloc before anything changes.
    void put_in_force(std::unique_ptr<const Snapshot> next);

  private:
    // Frees the snapshots that no thread uses. The others wait for the next publish(), so curb keeps at most the
    // snapshots replaced during the longest use.
    void free_replaced() noexcept;

    Published &all_ = leaked<Published>();
    const std::scoped_lock<std::mutex> lock_{all_.mutex};
    const Snapshot *const before_ = detail::now.snapshot;
};

void Publishing::free_replaced() noexcept {
    if (!all_.leaving.empty() && readers::Grace::is_over()) all_.leaving.clear();
    if (!all_.leaving.empty() || all_.waiting.empty() || !readers::Grace::begin()) return;
    all_.leaving.swap(all_.waiting);
    if (readers::Grace::is_over()) all_.leaving.clear();
}

void Publishing::put_in_force(std::unique_ptr<const Snapshot> next) {
    all_.waiting.reserve(all_.waiting.size() + 1);
    bool some_limited = false;
    for (Device &device : devices::all()) {
        device.limited = next->of(device.ordinal).limited();
        some_limited |= device.limited;
    }
    detail::now.limited = some_limited;
    detail::now.caches = next->caches;
    if (next->policy.suspend.turn) gate::count_all(before_ == nullptr);
    detail::now.snapshot = next.release();
    // Bytes that were reserved ahead were granted under the old limits.
    for (Device &device : devices::all()) device.ledger.take_back_ahead();
    if (before_) all_.waiting.emplace_back(before_);
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

// Builds the snapshot that follows `before` for a version and live caps. `own`, `ceiling`: its rules, matched with the
// devices.
std::unique_ptr<Snapshot> build(const Snapshot *before, std::shared_ptr<const Version> version,
                                const policy::LiveCaps &caps, const std::vector<policy::GpuIdentity> &gpus,
                                const policy::Matched &own, const policy::Matched &ceiling) {
    auto out = std::make_unique<Snapshot>(std::move(version));
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
    return build(&before, before.kept, caps, gpus, policy::match(before.policy.gpu, gpus),
                 policy::match(before.policy.ceiling, gpus));
}

}  // namespace

namespace in_force {

const config::Source &source() noexcept { return *detail::now.source; }

void set_source(const config::Source *source) noexcept { detail::now.source = source; }

Lines publish(Version version) {
    if (policy::needs_nvml_index(version.policy)) find_indexes();
    const std::vector<policy::GpuIdentity> gpus = identities();
    const policy::Matched own = policy::match(version.policy.gpu, gpus),
                          ceiling = policy::match(version.policy.ceiling, gpus);
    const auto kept = std::make_shared<const Version>(std::move(version));
    bool some_without_cap = false;
    {
        Publishing publishing;
        auto next = build(publishing.before(), kept, publishing.live_caps(), gpus, own, ceiling);
        for (std::size_t i = 0; i < gpus.size(); ++i) some_without_cap |= !next->gpus[i].terms.cap;
        publishing.put_in_force(std::move(next));
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
    Publishing publishing;
    const Snapshot &before = *publishing.before();
    if (before.unusable) return control::Failure{kUnusable};
    policy::LiveCaps caps = publishing.live_caps();
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
    if (changes) publishing.put_in_force(std::move(next));
    publishing.live_caps() = std::move(caps);
    return out;
}

policy::Result<control::CapReport, control::Failure> set_job_cap(const policy::GpuKey &key,
                                                                 std::optional<policy::Size> cap) {
    const std::vector<policy::GpuIdentity> gpus = identities();
    Publishing publishing;
    const Snapshot &before = *publishing.before();
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
    auto next = build(before, publishing.live_caps(), gpus);
    control::CapReport out;
    for (const std::size_t i : *named) {
        const Snapshot::Gpu &was = before.gpus[i], &is = next->gpus[i];
        const Device &device = devices::at(gpus[i].ordinal);
        out.gpus.push_back({gpus[i].ordinal, device.meter.uuid(), was.terms.job_cap, is.terms.job_cap, cap,
                            is.terms.job_ceiling, device.ledger.share.held_by_all()});
    }
    publishing.put_in_force(std::move(next));
    return out;
}

bool take_job_caps() {
    const std::vector<policy::GpuIdentity> gpus = identities();
    Publishing publishing;
    const Snapshot *before = publishing.before();
    if (!before) return false;
    auto next = build(*before, publishing.live_caps(), gpus);
    bool changes = false;
    for (std::size_t i = 0; i < gpus.size(); ++i) changes |= before->gpus[i].terms != next->gpus[i].terms;
    if (changes) publishing.put_in_force(std::move(next));
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
    const Publishing publishing;  // so that the snapshot is not replaced meanwhile
    for (Device &device : devices::all()) {
        const Snapshot::Gpu &gpu = publishing.before()->of(device.ordinal);
        if (!gpu.allowance.fall_back(gpu.terms.growth, device.ledger.held(), now_ms())) continue;
        device.ledger.take_back_ahead();
        out.push_back(device.ordinal);
    }
    return out;
}

}  // namespace in_force
}  // namespace curb::shim
