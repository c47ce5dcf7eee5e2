// The NVML functions that curb uses. curb loads NVML at first use (6 to 9 ms), never closes it, and retries after a
// failure. Thread-safe.
#pragma once

#include "driver/driver.hpp"

namespace curb::shim::nvml {

struct Functions {
    decltype(&nvmlInit_v2) init = nullptr;
    decltype(&nvmlDeviceGetHandleByUUID) by_uuid = nullptr;
    decltype(&nvmlDeviceGetIndex) index = nullptr;
    decltype(&nvmlDeviceGetMemoryInfo) memory = nullptr;
    decltype(&nvmlDeviceGetComputeRunningProcesses_v3) processes = nullptr;
    decltype(&nvmlDeviceGetProcessUtilization) utilization = nullptr;  // may be missing
    decltype(&nvmlDeviceGetMemoryLimits_v1) memory_limits = nullptr;   // missing before driver 615
};

// Loads NVML if needed. False if NVML is missing or failed recently; a later call tries again.
bool ensure_loaded() noexcept;

// True if NVML is initialised and knows limits of cgroups. Loads nothing.
bool has_memory_limits() noexcept;

// Waits until no other thread holds the loader's lock.
void wait_for_loader() noexcept;

// Loads and initialises NVML if needed. Returns null if NVML is missing or fails.
const Functions *functions() noexcept;

// Returns a function of the NVML library that the program loaded. Null if it loaded none, or if NVML lacks the
// function.
void *loaded(const char *symbol) noexcept;

// Loads NVML for the program, as the program's own stub would.
void load() noexcept;

}  // namespace curb::shim::nvml
