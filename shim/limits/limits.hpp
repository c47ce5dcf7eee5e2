// The limits in force for a device, compared with the bytes held. Thread-safe. Takes no lock. Only must_shrink() may
// call NVML or the driver.
#pragma once

#include <optional>

#include "device/devices.hpp"
#include "limits/in_force.hpp"
#include "policy/decisions/decide.hpp"
#include "trace/recording.hpp"

namespace curb::shim::limits {

// Returns the bytes of the cap that curb keeps free for code that the driver has yet to load.
inline Bytes kept_for_driver(const Device &device, Bytes cap) noexcept {
    return policy::driver_reserve(cap, device.ledger.overhead(), device.contexts.heap);
}

// True if contexts, stacks and code are charged and measured when the driver takes them: for a limit, or so that a
// trace shows what a cap would count.
inline bool counts_all(const Device &device) noexcept { return device.limited.load() || trace::on(); }

// Lays the limits that depend on other processes over the others: keep_free and the job's cap.
void lay_others_over(const Device &device, const Snapshot::Gpu &gpu, policy::Terms &out) noexcept;

// Fills default-constructed terms with the device's limits and figures. All limits come from one snapshot, so that an
// edit of the policy never mixes old and new ones. Inline and in place: copies cost 30 ns a call.
inline void fill(const Device &device, const Snapshot &now, policy::Terms &out) noexcept {
    const Snapshot::Gpu &gpu = now.of(device.ordinal);
    out.cap = gpu.terms.cap;
    out.allowance = gpu.allowance.bytes();
    if (const Bytes limit = policy::limit(out); limit != policy::kUnbounded)
        out.kept_for_driver = kept_for_driver(device, limit);
    out.ever = policy::held_beside(gpu.terms.growth.keep_free, device.total);
    out.refuse_everything = now.unusable;
    if (gpu.beside_others) [[unlikely]]
        lay_others_over(device, gpu, out);
}
policy::Terms terms(const Device &device, const Snapshot &now) noexcept;

// Returns the device's part of the snapshot in force. The caller's copy stays valid and unchanged; the next call may
// return a newer one.
InUse<Snapshot::Gpu> in_force(const Device &device) noexcept;
// Returns the cap in force: of the process, or what the other processes of its job leave of the job's cap if that is
// less. nullopt if the device has none.
std::optional<Bytes> cap(const Device &device) noexcept;
std::optional<Bytes> cap(const Device &device, const Snapshot::Gpu &gpu) noexcept;
// True if the process holds more than the cap.
bool exceeds_cap(const Device &device) noexcept;
// True if the process holds more than a request could be granted: the limit less the bytes kept for code, or the bytes
// that keep_free leaves.
bool exceeds_grantable(const Device &device) noexcept;
// True if the process holds more than cap, allowance or keep_free permit, or the policy is unusable: curb must return
// unused memory and keep none.
bool must_shrink(Device &device, const Snapshot &now) noexcept;
// Tells the other processes of the job how much this one keeps free for code that the driver loads.
void update_job(const Device &device) noexcept;
// Returns the bytes that requests can still get under this cap, once `returning` of the held bytes have been freed.
Bytes room(const Device &device, Bytes cap, Bytes returning = 0) noexcept;

}  // namespace curb::shim::limits
