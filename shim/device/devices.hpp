// The devices of this process, by ordinal, each with its ledger and its meter. Filled once, at the first cuInit.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>

#include "control/status.hpp"
#include "driver.hpp"
#include "ledger.hpp"
#include "meter.hpp"

namespace curb::shim {

struct Device {
    int ordinal = 0;
    Bytes total = 0;             // as the driver says
    std::array<char, 32> pci{};  // "0000:3b:00.0", in the driver's spelling; empty: not told
    Bytes resident_threads = 0;  // that its multiprocessors can hold at once: a stack is taken for each
    Ledger ledger;
    Meter meter;
    std::atomic<std::uint64_t> measured_ms{0};     // when the ledger was last held against the meter
    std::atomic<bool> measure_soon{false};         // the worker is asked to do it
    std::atomic<Bytes> reach{policy::kUnbounded};  // what it holds and what is free of the device, together
    std::atomic<std::uint64_t> reach_ms{0};        // when that was last asked
    std::atomic<bool> changed{false};              // the driver may have taken or given back memory of its own since
    std::atomic<bool> grown{false};                // of that: it may have taken some
    std::atomic<int> measuring{0};                 // threads that measure it for a request near the cap
    std::atomic<int> measuring_growth{0};          // threads that measure it since it may have grown
    std::atomic<std::uint64_t> figure_us{0};       // when the latest measurement that has ended was begun
    std::atomic<bool> has_nvml{false};    // NVML does not see this process: overhead is what contexts were seen
                                         // to take from the device at their creation
    std::atomic<int> contexts{0};        // live ones that were seen being made
    std::atomic<Bytes> context_cost{0};  // what one takes, as measured; 0: not yet
    std::atomic<bool> measuring_context{false};
    std::atomic<Bytes> heap{0};        // how much more than by default kernels may ask of the heap
    std::atomic<Bytes> cached{0};      // of what is held, what giving up every block kept for reuse would give back
    std::atomic<std::size_t> kept{0};  // how many blocks these are
    std::atomic<bool> limited{false};  // by the policy in force (in_force.hpp)
    std::atomic<bool> peers{false};    // a context of another device may reach its memory
    // What is told from outside, since the process began: requests that were refused, by what they met (refusals.hpp),
    // or held for room; bytes that releases gave back, by step.
    std::array<std::atomic<std::uint64_t>, policy::kObstacles> refused{};
    std::atomic<std::uint64_t> waited{0};
    std::array<std::atomic<Bytes>, policy::kSteps> released{};
    std::array<char, 128>
        model{};  // "NVIDIA H200", for a trace, whose first line may be written when the driver has shut down

    // "cuda:0"
    [[nodiscard]] std::string name() const { return "cuda:" + std::to_string(ordinal); }
};

namespace devices {

inline constexpr int kMost = 64;  // CUDA_VISIBLE_DEVICES of the largest machines name 16

// Reads the devices from the driver. At cuInit, before `active()` is true.
void discover() noexcept;
[[nodiscard]] int count() noexcept;
Device &at(int ordinal) noexcept;

// The device of the calling thread's current context; null: none is current (the driver will say so itself), or curb is
// not active in this process.
Device *current() noexcept;
// The device with this CUdevice; null: there is none, or curb is not active.
Device *find(CUdevice device) noexcept;

// Whether the process may hold anything of it. (Memory of pools and of the mapping calls outlives the contexts.)
bool in_use(const Device &device) noexcept;
// True if a device in use was reconciled so long ago that its figures may be stale: without a limit nothing else
// reconciles it.
bool any_stale() noexcept;
// What this process could hold of the device if it took all that is free, as last measured (measure_reach).
inline Bytes within_reach(const Device &device) noexcept { return device.reach.load(std::memory_order_relaxed); }
// Has the worker reconcile the device. Leaves errno.
void measure_soon(Device &device) noexcept;
// The driver may have taken or given back memory of its own: where it matters, the device is measured before the next
// decision.
void measure_before_decision(Device &device) noexcept;
// The same where it can only have given back.
void measure_returned_soon(Device &device) noexcept;
// A context of the device was made or has gone. The latter: true if it was the last one.
void context_made(Device &device) noexcept;
bool context_gone(Device &device) noexcept;
// Contexts that were seen being made and are still there, on all devices together.
int contexts() noexcept;

}  // namespace devices
}  // namespace curb::shim
