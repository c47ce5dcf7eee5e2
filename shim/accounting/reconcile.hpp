// Brings a device's ledger together with what NVML measures.
#pragma once

#include "devices.hpp"

namespace curb::shim {

// Sets pools and overhead of the ledger to the device's own figures. Asks NVML; not within an operation of the ledger.
// Thread-safe. Leaves errno.
void reconcile(Device &device) noexcept;

// Measures how much of the device this process could hold if it took all that is free (devices::within_reach). Asks
// NVML. Thread-safe. Leaves errno.
void measure_reach(Device &device) noexcept;

}  // namespace curb::shim
