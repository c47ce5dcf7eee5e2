// What the policy in force allows of a device, beside what is held of it.
//
// Thread-safe; takes no lock. is_beyond() may ask NVML.
#pragma once

#include <optional>

#include "devices.hpp"
#include "in_force.hpp"
#include "policy/decide.hpp"

namespace curb::shim::limits {

// How much of the cap is kept for code that the driver has yet to load.
inline Bytes kept_for_driver(const Device &device, Bytes cap) noexcept {
    return policy::driver_reserve(cap, device.ledger.overhead(), device.heap.load(std::memory_order_relaxed));
}

// Fills in what policy and ledger say of the device, into terms that are otherwise fresh. All from one snapshot: an
// edit between two looks must not show as a mixture. (In place, and inline: copies of what was just written byte by
// byte cost 30 ns a call.)
inline void fill(const Device &device, const Snapshot &now, policy::Terms &out) noexcept {
    const Snapshot::Gpu &gpu = now.of(device.ordinal);
    out.cap = gpu.terms.cap;
    out.allowance = gpu.allowance.bytes();
    if (const Bytes limit = policy::limit(out); limit != policy::kUnbounded)
        out.kept_for_driver = kept_for_driver(device, limit);
    if (gpu.terms.growth.keep_free != 0)
        out.beside_others = policy::held_beside(gpu.terms.growth.keep_free, devices::within_reach(device));
    out.ever = policy::held_beside(gpu.terms.growth.keep_free, device.total);
    out.refuse_everything = now.unusable;
}
policy::Terms terms(const Device &device, const Snapshot &now) noexcept;

// What is in force for the device. It holds together for as long as the caller keeps it; the next call may give a newer
// one.
InUse<Snapshot::Gpu> in_force(const Device &device) noexcept;
// The cap in force on the device; none: no cap.
std::optional<Bytes> cap(const Device &device) noexcept;
bool is_over_cap(const Device &device) noexcept;
// Whether more is held than requests may take.
bool is_over(const Device &device) noexcept;
// Whether more is held than is allowed at all: nothing may be kept that could go back.
bool is_beyond(Device &device, const Snapshot &now) noexcept;
// What requests can still get under this cap, if `returning` of what is held goes back first.
Bytes room(const Device &device, Bytes cap, Bytes returning = 0) noexcept;

}  // namespace curb::shim::limits
