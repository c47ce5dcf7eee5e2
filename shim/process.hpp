// The one root of curb in this process: whether it is active, and the policy in force.
//
// States: asleep (a program that has not used CUDA: nothing is read, opened or started) -> active (after the first
// successful cuInit) -> passing (a fork child of an active process: the driver refuses it anyway, and the locks and
// threads it inherited are dead, so every call goes straight on). Reached without constructors: everything is
// constinit.
#pragma once

#include <array>
#include <optional>
#include <string>

#include "config/load.hpp"
#include "policy/policy.hpp"

namespace curb::shim {

// A policy as it applies to this process's devices. Never changed once in force; a new policy is a new snapshot, and
// older ones are kept (a kilobyte an edit): readers hold no reference, so there is no moment at which nobody reads one.
struct Snapshot {
    const Snapshot *older = nullptr;
    policy::Policy policy;
    struct Gpu {
        std::optional<policy::Bytes> cap;
        bool report_device = false;  // programs are told of the device, not of the cap
    };
    std::array<Gpu, 64> gpus{};  // by device ordinal
    bool capped = false;         // one of them has a cap
    bool unusable = false;       // a named policy that cannot be used: refuse everything

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

// Puts a policy in force from here on. Releases at once if a device holds more than its cap allows.
void enforce(const policy::Policy &policy) noexcept;

}  // namespace process
}  // namespace curb::shim
