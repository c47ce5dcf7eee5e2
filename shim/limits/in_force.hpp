// The policy in force: the policy file and the live caps (curb cap), published together as one snapshot behind one
// atomic pointer.
//
// Several threads publish: curb-policy after edits, curb-control or its helper thread for caps, curb-job for caps of
// the job. One lock between them; it is never held across a call that may block: driver, NVML, file, log.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/lifetime.hpp"
#include "base/readers.hpp"
#include "config/load.hpp"
#include "control/messages.hpp"
#include "policy/decisions/growth.hpp"
#include "policy/policy.hpp"

namespace curb::shim {

using policy::Bytes;

// The allowance of one device under one policy: the bytes that the process may hold before the next growth step. The
// rules are in policy/decisions/growth.hpp; this is the shared state. Thread-safe.
class Allowance {
  public:
    // Called before other threads can see it.
    void begin(Bytes bytes, std::uint64_t last_step_ms) noexcept;

    [[nodiscard]] Bytes bytes() const noexcept { return bytes_; }
    [[nodiscard]] std::uint64_t last_step_ms() const noexcept { return stepped_ms_; }

    // Takes the growth step that is due. False if another thread has just taken it.
    bool step(const policy::Growth &growth, std::uint64_t now_ms) noexcept;
    // Lowers the allowance to `held` after a release and restarts the time to the next step. False if nothing changed.
    bool fall_back(const policy::Growth &growth, Bytes held, std::uint64_t now_ms) noexcept;

  private:
    void set(Bytes bytes, std::uint64_t stepped_ms) noexcept;

    std::mutex mutex_;
    // Written under the lock, except by begin(). Atomic because every request reads them.
    std::atomic<Bytes> bytes_{policy::kUnbounded};
    std::atomic<std::uint64_t> stepped_ms_{0};
};

// One version of the policy. Freed with the last snapshot that uses it.
struct Version {
    policy::Policy policy;
    std::string rule;        // "rule 2 \"bert\""; empty if no rule applies
    bool ceiling = false;    // the machine's ceiling has an effect
    bool unusable = false;   // the policy is invalid: refuse everything
    std::int64_t since = 0;  // when it was put in force, in milliseconds since 1970
};

// Version and live caps, applied to the devices of this process. Immutable once in force. A new snapshot replaces it,
// and it is freed once no thread uses it (docs/decisions/0024).
struct Snapshot {
    explicit Snapshot(std::shared_ptr<const Version> of)
        : kept(std::move(of)), version(*kept), policy(version.policy), unusable(version.unusable) {}

    const std::shared_ptr<const Version> kept;
    const Version &version;
    const policy::Policy &policy;  // of the version
    struct Gpu {
        policy::GpuTerms terms;
        std::optional<policy::Size> live_cap;  // set by curb cap; nullopt: the policy's cap applies
        bool beside_others = false;            // keep_free or a cap of the job: what others hold counts
        mutable Allowance allowance;           // the only member that changes while the snapshot is in force

        // True if any limit applies.
        [[nodiscard]] bool limited() const noexcept {
            return terms.cap || terms.job_cap || terms.growth.start || terms.growth.keep_free != 0;
        }
    };
    std::unique_ptr<Gpu[]> gpus;  // by device ordinal
    bool caches = false;          // a device has a cache of freed blocks
    bool unusable = false;        // = version.unusable

    [[nodiscard]] const Gpu &of(int ordinal) const noexcept { return gpus[static_cast<std::size_t>(ordinal)]; }
};

namespace detail {
// Written by publishing threads. Read without a lock.
struct InForce {
    std::atomic<const Snapshot *> snapshot{nullptr};
    std::atomic<bool> limited{false}, caches{false};
    std::atomic<const config::Source *> source{nullptr};
};
inline constinit InForce now;
}  // namespace detail

// A reference to the snapshot in force, or a part of it, that keeps it from being freed. Used by one thread. Do not
// hold one while a request waits: replaced snapshots stay in memory until then.
template <class Part>
class InUse : NoCopy {
  public:
    ~InUse() { reader_.leave(before_); }
    const Part &operator*() const noexcept { return *part_; }
    const Part *operator->() const noexcept { return part_; }
    // Ends the reference early.
    void let_go() noexcept { reader_.leave(before_); }

    // `part` selects the part of the snapshot.
    template <class Pick>
    explicit InUse(Pick part) noexcept
        : reader_(readers::mine()), before_(reader_.enter()), part_(&part(*detail::now.snapshot.load())) {}

  private:
    readers::Reader &reader_;
    const std::uint32_t before_;
    const Part *part_;
};

namespace in_force {

// One atomic load and two stores to thread-local memory. Only once curb is active.
inline InUse<Snapshot> snapshot() noexcept {
    return InUse<Snapshot>([](const Snapshot &now) -> const Snapshot & { return now; });
}
// True unless a new snapshot has replaced this one.
inline bool is_current(const Snapshot &one) noexcept { return detail::now.snapshot == &one; }
// True if a device is limited (Device::limited), or has a cache. Reads a flag, not the snapshot.
inline bool limited() noexcept { return detail::now.limited; }
inline bool caches() noexcept { return detail::now.caches; }

// Returns where the policy came from. Only once curb is active. Thread-safe.
const config::Source &source() noexcept;
// Called once, before the first publish(). `source` is never freed.
void set_source(const config::Source *source) noexcept;

// A message to log after the lock is released.
struct Line {
    policy::LogLevel level{};
    std::string text;
};
using Lines = std::vector<Line>;

// Puts a version in force; live caps stay. Returns messages about its GPU keys. Throws std::bad_alloc, and then the old
// snapshot stays in force.
Lines publish(Version version);

// Sets or clears live caps. Calls neither driver nor NVML: a key with an nvidia-smi index matches only devices whose
// index is known. On failure nothing changes and the text says why. Throws as publish().
policy::Result<control::CapReport, control::Failure> set_cap(const policy::GpuKey &key,
                                                             std::optional<policy::Size> cap);
// The same for the cap of the job, in all its processes.
policy::Result<control::CapReport, control::Failure> set_job_cap(const policy::GpuKey &key,
                                                                 std::optional<policy::Size> cap);
// Puts in force what set_job_cap() has set in another process of the job. False if nothing changes. Throws as
// publish().
bool take_job_caps();
// True if set_cap() needs find_indexes() first. That calls NVML: it takes milliseconds, or seconds if NVML does not
// answer.
bool needs_indexes(const policy::GpuKey &key) noexcept;
void find_indexes() noexcept;

// Lowers the allowances to the bytes held, after a release. Returns the ordinals whose allowance changed.
std::vector<int> fall_back();

}  // namespace in_force
}  // namespace curb::shim
