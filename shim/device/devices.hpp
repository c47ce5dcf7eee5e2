// The devices of this process, by ordinal, each with its ledger and its meter. Read once, at the first cuInit.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <span>
#include <string>

#include "base/waiting.hpp"
#include "control/status.hpp"
#include "device/ledger.hpp"
#include "device/meter.hpp"
#include "driver/driver.hpp"

namespace curb::shim {

struct Device {
    int ordinal = 0;
    Bytes total = 0;             // from the driver
    std::array<char, 32> pci{};  // "0000:3b:00.0", in the driver's spelling; empty if unknown
    Bytes resident_threads = 0;  // the most that can be resident; the driver allocates a stack for each
    Ledger ledger;
    Meter meter;
    std::atomic<std::uint64_t> measured_ms{0};  // time of the last reconcile
    std::atomic<bool> measure_soon{false};      // the worker should reconcile it
    std::atomic<Bytes> reach{0};                // held by this process plus free on the device, once discovered
    std::atomic<std::uint64_t> reach_ms{0};     // when `reach` was measured
    std::atomic<bool> changed{false};           // the driver may have taken or returned memory since the reconcile
    std::atomic<bool> grown{false};             // the driver may have taken memory since the reconcile
    std::atomic<int> measuring{0};              // threads that reconcile it for a request near the cap
    std::atomic<int> measuring_growth{0};       // threads that reconcile it because `grown` was set
    std::atomic<std::uint64_t> figure_us{0};    // start time of the last completed reconcile
    std::atomic<bool> has_nvml{false};          // NVML sees this process; if not, overhead is the measured context cost
    std::atomic<int> contexts{0};               // live contexts whose creation curb saw
    std::atomic<Bytes> context_cost{0};         // measured bytes of one context; 0 before the measurement
    std::atomic<std::uint32_t> first_context{0};  // 1: a thread creates and judges it; a futex
    std::atomic<Bytes> heap{0};                   // bytes of the kernels' heap limit above the default
    std::atomic<Bytes> cached{0};                 // bytes of `held` that freeing every kept block would return
    std::atomic<std::size_t> kept{0};             // number of kept blocks
    std::atomic<bool> limited{false};             // by the policy in force (in_force.hpp)
    std::atomic<bool> peers{false};               // a context of another device may access its memory
    OneAtATime tries_idle;                        // a request tries a pool's idle memory (pools::IdleTry)
    // Counters that clients read, since process start: refused requests by limit, requests that waited,
    // and bytes that releases freed, by step.
    std::array<std::atomic<std::uint64_t>, policy::kLimits> refused{};
    std::atomic<std::uint64_t> waited{0};
    std::array<std::atomic<Bytes>, policy::kSteps> released{};
    // "NVIDIA H200". Stored, because a trace's first line may be written after the driver has shut down.
    std::array<char, 128> model{};

    // "cuda:0"
    [[nodiscard]] std::string name() const { return "cuda:" + std::to_string(ordinal); }
};

namespace devices {

inline constexpr int kMost = 64;  // CUDA_VISIBLE_DEVICES of the largest machines name 16

namespace detail {
// Never destroyed: threads may call the driver while the process exits. All zero, without a pointer, so that a process
// without CUDA touches none of its pages at the start.
extern constinit std::array<Device, kMost> records;
inline constinit int known = 0;
}  // namespace detail

// Reads the devices from the driver. Call it in cuInit, before `active()` is true.
void discover() noexcept;
[[nodiscard]] inline int count() noexcept { return detail::known; }
inline Device &at(int ordinal) noexcept { return detail::records[static_cast<std::size_t>(ordinal)]; }
inline std::span<Device> all() noexcept { return {detail::records.data(), static_cast<std::size_t>(count())}; }

// Returns the device of the thread's current context. Null if no context is current (the driver then returns the error)
// or curb is not active. Calls the driver.
Device *current() noexcept;
// Returns the device with this CUdevice. Null if there is none or curb is not active.
Device *find(CUdevice device) noexcept;

// True if the process may hold memory of it. (Memory of pools and mappings outlives the contexts.)
bool in_use(const Device &device) noexcept;
// True if some device in use was last reconciled a second or more ago. Without a limit or a trace only client queries
// reconcile it.
bool any_stale() noexcept;
// Returns the bytes the process could hold if it took all free memory, as last measured (measure_reach).
inline Bytes within_reach(const Device &device) noexcept { return device.reach.load(std::memory_order_relaxed); }
// Has the worker reconcile the device. Keeps errno.
void measure_soon(Device &device) noexcept;
// The same for each device that is in use.
void measure_all_soon() noexcept;
// Call it if the driver may have taken or returned memory of its own: a request near the cap then reconciles first.
void measure_before_decision(Device &device) noexcept;
// The same if the driver can only have returned memory.
void measure_returned_soon(Device &device) noexcept;
// Count the device's contexts. context_gone() returns true for the last one.
void context_made(Device &device) noexcept;
bool context_gone(Device &device) noexcept;
// Returns the number of live contexts whose creation curb saw, on all devices.
int contexts() noexcept;

}  // namespace devices
}  // namespace curb::shim
