// Reconciles a device's ledger with NVML's figures.
#pragma once

#include "device/devices.hpp"
#include "job/exports.hpp"

namespace curb::shim {

// Sets the ledger's pools and overhead to the measured figures. Calls NVML and the driver. Do not call it within a
// ledger operation. `attempts`: see Ledger::reconcile. Thread-safe. Keeps errno.
void reconcile(Device &device, int attempts = Ledger::kAttempts) noexcept;

// The same for a request near the cap. Does nothing if another thread is doing it and the last figure is less than a
// millisecond old and the driver has not taken memory since. Thread-safe. Keeps errno.
void reconcile_unless_fresh(Device &device) noexcept;

// Call it after a driver call that may have taken memory for code or a stack: a request near the cap then measures
// first. If there is a trace, measures now: a reader looks for the smallest cap, wherever the cap is. Keeps errno.
void driver_may_have_taken(Device &device) noexcept;

// Measures the bytes this process could hold if it took all free memory (Freshness::reach). Calls NVML.
// Thread-safe. Keeps errno.
void measure_reach(Device &device) noexcept;

// Call it when this process no longer has memory of another process open. If the job counted that memory for this
// process (exports.hpp), ends that, and the worker reconciles the devices in use. Thread-safe.
void end_import(job::MemoryKey key) noexcept;

}  // namespace curb::shim
