// What holds in this process: its policy and the caps that were set from outside, put in force together as one
// snapshot, by one pointer.
//
// Two threads do that, curb-policy for edits and curb-control for caps. The lock that keeps one from undoing what the
// other has just done is never held while anything is called that may wait: the driver, NVML, a file, the log.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "allowance.hpp"
#include "config/load.hpp"
#include "control/messages.hpp"
#include "policy/policy.hpp"
#include "readers.hpp"

namespace curb::shim {

// One version of the policy. Freed with the last snapshot of it.
struct Version {
    policy::Policy policy;
    std::string rule;        // "rule 2 \"bert\""; empty: none was laid over
    bool ceiling = false;    // the machine's ceiling says something
    bool unusable = false;   // a named policy that cannot be used: refuse everything
    std::int64_t since = 0;  // milliseconds since 1970 when it was put in force
};

// Version and live caps as they apply to this process's devices. Never changed once in force; a new one takes its
// place, and it is freed when no thread has it in use any more (docs/decisions/0030).
struct Snapshot {
    explicit Snapshot(std::shared_ptr<const Version> of)
        : kept(std::move(of)), version(*kept), policy(version.policy), unusable(version.unusable) {}

    const std::shared_ptr<const Version> kept;
    const Version &version;
    const policy::Policy &policy;  // of the version
    struct Gpu {
        policy::GpuTerms terms;
        std::optional<policy::Size> live_cap;  // what the cap was set to from outside; none: it is the policy's
        mutable Allowance allowance;           // the one thing that changes while the snapshot is in force

        // Whether requests can meet a limit at all.
        [[nodiscard]] bool limited() const noexcept {
            return terms.cap || terms.growth.start || terms.growth.keep_free != 0;
        }
    };
    std::unique_ptr<Gpu[]> gpus;  // by device ordinal
    bool caches = false;          // of one of them freed blocks are kept
    bool unusable = false;        // of the version

    [[nodiscard]] const Gpu &of(int ordinal) const noexcept { return gpus[static_cast<std::size_t>(ordinal)]; }
};

namespace detail {
extern constinit std::atomic<const Snapshot *> snapshot;
extern constinit std::atomic<bool> limited, caches;
}  // namespace detail

// The snapshot in force, or a part of it, which is not freed before this object ends. Belongs to one thread. Kept for a
// decision, not while a request waits: what is replaced meanwhile stays in memory.
template <class Part>
class InUse {
  public:
    InUse(const InUse &) = delete;
    InUse &operator=(const InUse &) = delete;
    ~InUse() { reader_.leave(before_); }
    const Part &operator*() const noexcept { return *part_; }
    const Part *operator->() const noexcept { return part_; }
    // Ends the use early.
    void let_go() noexcept { reader_.leave(before_); }

    // `part` picks it from the snapshot.
    template <class Pick>
    explicit InUse(Pick part) noexcept
        : reader_(readers::mine()),
          before_(reader_.enter()),
          part_(&part(*detail::snapshot.load(std::memory_order_acquire))) {}

  private:
    readers::Reader &reader_;
    const std::uint32_t before_;
    const Part *part_;
};

namespace process {
// One atomic load, and two stores to a place of the thread's own. Only once active.
inline InUse<Snapshot> snapshot() noexcept {
    return InUse<Snapshot>([](const Snapshot &now) -> const Snapshot & { return now; });
}
// Whether one of the devices is limited (which stands in Device::limited), or has a cache, in the snapshot in force:
// without a look into it.
inline bool limited() noexcept { return detail::limited.load(std::memory_order_relaxed); }
inline bool caches() noexcept { return detail::caches.load(std::memory_order_relaxed); }
}  // namespace process

namespace in_force {

// Where the policy came from. Only once active. Thread-safe.
const config::Source &source() noexcept;
// Once, before anything is published. `source` is never freed.
void set_source(const config::Source *source) noexcept;

// Something to log, once the lock is given up.
struct Line {
    policy::LogLevel level{};
    std::string text;
};
using Lines = std::vector<Line>;

// Puts a version in force, beside the caps that were set from outside. Returns what is to be said of its device keys.
// May throw std::bad_alloc, and the one before stays; as set_cap().
Lines publish(Version version);
// The same of the version in force.
Lines notes();

// Sets caps from outside, or takes them away. Calls neither driver nor NVML: a key that asks for nvidia-smi's index
// finds the devices of which it is known. The failure says why nothing was set.
policy::Result<control::CapReport, control::Failure> set_cap(const policy::GpuKey &key,
                                                             std::optional<policy::Size> cap);
// Whether that waits for find_indexes(), which asks NVML and may take milliseconds, or wait for a stuck driver.
bool needs_indexes(const policy::GpuKey &key) noexcept;
void find_indexes() noexcept;

// Memory was released: the allowances fall back to what is held. Returns the ordinals of those that did.
std::vector<int> fall_back();

}  // namespace in_force
}  // namespace curb::shim
