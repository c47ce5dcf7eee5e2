// The devices of this process, by ordinal, each with its ledger and its meter. Read once, at the first cuInit.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>

#include "base/waiting.hpp"
#include "control/status.hpp"
#include "device/freshness.hpp"
#include "device/ledger.hpp"
#include "device/meter.hpp"
#include "driver/driver.hpp"

namespace curb::shim {

// Counters that clients read, since process start. Thread-safe.
class Counts : NoCopy {
  public:
    struct Figures {
        std::array<std::uint64_t, policy::kLimits> refused{};  // requests, by the limit that they exceeded
        std::uint64_t waited = 0;                              // requests
        std::array<Bytes, policy::kSteps> released{};          // by the step of the release
    };
    void note_refused(policy::Limit why) noexcept {
        const std::scoped_lock lock(lock_);
        ++figures_.refused[static_cast<std::size_t>(why)];
    }
    void note_waited() noexcept {
        const std::scoped_lock lock(lock_);
        ++figures_.waited;
    }
    void note_released(policy::Step step, Bytes bytes) noexcept {
        const std::scoped_lock lock(lock_);
        figures_.released[static_cast<std::size_t>(step)] += bytes;
    }
    [[nodiscard]] Figures read() const noexcept {
        const std::scoped_lock lock(lock_);
        return figures_;
    }

  private:
    mutable std::mutex lock_;
    Figures figures_;
};

struct Device {
    // From the driver, at the first cuInit.
    int ordinal = 0;
    Bytes total = 0;
    std::array<char, 32> pci{};       // "0000:3b:00.0", in the driver's spelling; empty if unknown
    std::array<char, 128> model{};    // "NVIDIA H200". Stored: the driver may have shut down when a trace begins
    Bytes resident_threads = 0;       // the most that can be resident; the driver allocates a stack for each
    bool shares_host_memory = false;  // an integrated GPU: NVML has no figures of its memory

    Ledger ledger;
    Meter meter;
    Freshness freshness;
    Counts counts;

    // The rest are single figures, each of which may be read at any time.
    struct Contexts {
        std::atomic<int> live{0};             // whose creation curb saw
        std::atomic<Bytes> cost{0};           // measured bytes of one; 0 before the measurement
        std::atomic<std::uint32_t> first{0};  // 1: a thread creates and judges the first one; a futex
        std::atomic<Bytes> heap{0};           // bytes of the kernels' heap limit above the default
    } contexts;
    struct Kept {
        std::atomic<std::size_t> blocks{0};
        std::atomic<Bytes> bytes{0};     // of `held`, that freeing every kept block would return
        std::atomic<bool> peers{false};  // a context of another device may access the memory: no block is kept
    } kept;
    std::atomic<bool> has_nvml{false};  // NVML sees this process; if not, overhead is the measured cost of contexts
    std::atomic<bool> limited{false};   // by the policy in force (in_force.hpp)
    OneAtATime tries_idle;              // a request tries a pool's idle memory (pools::IdleTry)

    // "cuda:0"
    [[nodiscard]] std::string name() const { return "cuda:" + std::to_string(ordinal); }
};

namespace devices {

inline constexpr int kMost = 64;  // CUDA_VISIBLE_DEVICES of the largest machines name 16

namespace detail {
// Never destroyed: threads may call the driver while the process exits. All zero, without a pointer, so that a process
// without CUDA touches none of its pages at the start.
struct Known {
    std::array<Device, kMost> records{};
    int count = 0;
    std::atomic<int> contexts{0};  // of all devices: each free that curb may keep asks
};
inline constinit Known known;
}  // namespace detail

// Reads the devices from the driver. Call it in cuInit, before `active()` is true.
void discover() noexcept;
[[nodiscard]] inline int count() noexcept { return detail::known.count; }
inline Device &at(int ordinal) noexcept { return detail::known.records[static_cast<std::size_t>(ordinal)]; }
inline std::span<Device> all() noexcept { return {detail::known.records.data(), static_cast<std::size_t>(count())}; }

// Returns the device of the thread's current context. Null if no context is current (the driver then returns the error)
// or curb is not active. Calls the driver.
Device *current() noexcept;
// Returns the device with this CUdevice. Null if there is none or curb is not active.
Device *find(CUdevice device) noexcept;

// True if the process may hold memory of it. (Memory of pools and mappings outlives the contexts.)
bool in_use(const Device &device) noexcept;
// The same of some device.
bool any_in_use() noexcept;
// True if some device in use was last reconciled a second or more ago. Without a limit or a trace only client queries
// reconcile it.
bool any_stale() noexcept;
// Has the worker reconcile the device. Keeps errno.
void measure_soon(Device &device) noexcept;
// The same for each device that is in use.
void measure_all_soon() noexcept;
// Call it if the driver may have taken or returned memory of its own: a request near the cap then reconciles first.
inline void measure_before_decision(Device &device) noexcept { device.freshness.note_taken(); }
// The same if the driver can only have returned memory.
inline void measure_returned_soon(Device &device) noexcept { device.freshness.note_returned(); }
// Count the device's contexts. context_gone() returns true for the last one.
void context_made(Device &device) noexcept;
bool context_gone(Device &device) noexcept;
// Returns a device that shares the host's memory. Null if none does.
const Device *sharing_host_memory() noexcept;
// Returns the number of live contexts whose creation curb saw, on all devices.
inline int contexts() noexcept { return detail::known.contexts; }

}  // namespace devices
}  // namespace curb::shim
