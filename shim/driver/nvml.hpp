// NVML, as curb uses it. Loaded at the first question (6 to 9 ms) and never closed; tried again after a failure.
// Thread-safe.
#pragma once

#include "driver.hpp"

namespace curb::shim::nvml {

struct Functions {
    decltype(&nvmlInit_v2) init = nullptr;
    decltype(&nvmlDeviceGetHandleByUUID) by_uuid = nullptr;
    decltype(&nvmlDeviceGetIndex) index = nullptr;
    decltype(&nvmlDeviceGetMemoryInfo) memory = nullptr;
    decltype(&nvmlDeviceGetComputeRunningProcesses_v3) processes = nullptr;
    decltype(&nvmlDeviceGetProcessUtilization) utilization = nullptr;  // may be missing
};

// Loads NVML, if that is not done. False if it is not there, or has just failed: it is tried again later.
bool ensure_loaded() noexcept;

// Returns once no other thread holds the loader's lock.
void wait_for_loader() noexcept;

// Initialises it as well. Null: NVML is not there, or does not work.
const Functions *functions() noexcept;

// The function of this name in the NVML that the program has loaded; null: it has none, or NVML lacks it.
void *loaded(const char *symbol) noexcept;

// Loads NVML for the program, as a stub of its own would.
void load() noexcept;

}  // namespace curb::shim::nvml
