// The devices of this process, by ordinal, each with its ledger and its meter. Filled once, at the first cuInit.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "driver.hpp"
#include "ledger.hpp"
#include "meter.hpp"

namespace curb::shim {

struct Device {
    int ordinal = 0;
    Bytes total = 0;  // as the driver says
    Ledger ledger;
    Meter meter;
    std::atomic<std::uint64_t> measured_ms{0};  // when the ledger was last held against the meter
    std::atomic<bool> blind{false};             // NVML does not see this process: overhead is what contexts were seen
                                                // to take from the device at their creation
    std::atomic<int> contexts{0};               // live ones that were seen being made

    // "cuda:0"
    [[nodiscard]] std::string name() const { return "cuda:" + std::to_string(ordinal); }
};

namespace devices {

// Reads the devices from the driver. At cuInit, before `active()` is true.
void discover() noexcept;
[[nodiscard]] int count() noexcept;
Device &at(int ordinal) noexcept;

// The device of the calling thread's current context; null: none is current (the driver will say so itself), or curb is
// not active in this process.
Device *current() noexcept;
// The device with this CUdevice; null: there is none, or curb is not active.
Device *find(CUdevice device) noexcept;

// Sets pools and overhead of the ledger to the device's own figures. Leaves errno.
void reconcile(Device &device) noexcept;

std::uint64_t now_ms() noexcept;

}  // namespace devices
}  // namespace curb::shim
