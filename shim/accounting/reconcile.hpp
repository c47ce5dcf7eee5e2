// Brings a device's ledger together with what NVML measures.
#pragma once

#include "devices.hpp"

namespace curb::shim {

// Sets pools and overhead of the ledger to the device's own figures. Asks NVML; not within an operation of the ledger.
// Thread-safe. Leaves errno.
void reconcile(Device &device) noexcept;

// The same for a request near the cap, unless another thread does so at this moment: then the figure before is as good,
// if it is less than a millisecond old and nothing that curb saw has changed since. Thread-safe. Leaves errno.
void reconcile_unless_fresh(Device &device) noexcept;

// Measures how much of the device this process could hold if it took all that is free (devices::within_reach). Asks
// NVML. Thread-safe. Leaves errno.
void measure_reach(Device &device) noexcept;

}  // namespace curb::shim
