// Finds out what doctor.hpp judges. Nothing is changed but that the user's runtime folder is made, as by every program
// under curb.
#pragma once

#include "doctor.hpp"

namespace curb::cli {

// Takes seconds where the driver sleeps, and some more where it hangs.
MachineCondition look_at_machine();
ProcessCondition look_into(int pid);

// A call of the driver's or NVML's that never came back still hangs in a thread: the program must end by _Exit.
bool something_hangs();

}  // namespace curb::cli
