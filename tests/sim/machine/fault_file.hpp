// CURB_SIM_FAULT_FILE and CURB_SIM_CALLS (sim.h), for the driver and for NVML.
#pragma once

#include <string_view>

namespace curb::sim {

// Notes the call. Returns the error that it must fail with, or 0. Thread-safe, also between processes.
int fault_in_file(std::string_view name);

}  // namespace curb::sim
