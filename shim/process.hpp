// The one root of curb in this process: whether it is active, and the policy in force.
//
// States: asleep (a program that has not used CUDA: nothing is read, opened or started) -> active (after the first
// successful cuInit) -> passing (a fork child of an active process: the driver refuses it anyway, and the locks and
// threads it inherited are dead, so every call goes straight on). Reached without constructors: everything is
// constinit.
#pragma once

#include <memory>

#include "allowance.hpp"
#include "config/load.hpp"
#include "policy/policy.hpp"

namespace curb::shim {

// A policy as it applies to this process's devices. Never changed once in force; a new policy is a new snapshot, and
// older ones are kept (a kilobyte an edit): readers hold no reference, so there is no moment at which nobody reads one.
struct Snapshot {
    const Snapshot *older = nullptr;
    policy::Policy policy;
    struct Gpu {
        policy::GpuTerms terms;
        mutable Allowance allowance;  // the one thing that changes while the policy is in force

        // Whether requests can meet a limit at all.
        [[nodiscard]] bool limited() const noexcept {
            return terms.cap || terms.growth.start || terms.growth.keep_free != 0;
        }
    };
    std::unique_ptr<Gpu[]> gpus;  // by device ordinal
    bool limited = false;         // one of them is
    bool caches = false;          // of one of them freed blocks are kept
    bool unusable = false;        // a named policy that cannot be used: refuse everything

    [[nodiscard]] const Gpu &of(int ordinal) const noexcept { return gpus[static_cast<std::size_t>(ordinal)]; }
};

namespace process {

bool active() noexcept;
// One atomic load. Only once active.
const Snapshot &snapshot() noexcept;
// Where the policy came from. Only once active.
const config::Source &source() noexcept;

// The driver has been initialised: read the policy, find the devices, start the threads. Once; others pass.
void activate() noexcept;

// The process as rules see it: as it was at its first use of CUDA. Later some programs write over their arguments, to
// show a title, and over the environment behind them. Used by one thread at a time; only once active.
policy::Subject subject(bool with_user);

// Puts a policy in force from here on and says what has changed. Releases at once if a device holds more than its cap
// allows; whoever waits for room looks again.
void enforce(const config::Loaded &loaded) noexcept;

// Memory was released: the allowances fall back to what is held.
void fall_back() noexcept;

}  // namespace process
}  // namespace curb::shim
