// Loads the simulated driver into this command, for `--sim` of the commands that look at processes or GPUs.
#pragma once

#include <optional>
#include <string>

namespace curb::cli {

// Loads the simulated libcuda and NVML instead of the machine's, with the state file (CURB_SIM_STATE) that the
// processes under curb share, if `wanted`. Call it before anything loads the driver. Returns the error; nullopt on
// success.
std::optional<std::string> use_sim(bool wanted);

// True without --sim, and if the process runs on the simulated machine that use_sim() has loaded.
bool is_on_machine(int pid);

}  // namespace curb::cli
