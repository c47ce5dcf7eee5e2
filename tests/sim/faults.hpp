// CURB_SIM_FAULT, curb_sim_fail and curb_sim_break: make calls fail.
#pragma once

#include "entry.hpp"

namespace curb::sim {

// What this call must return, or success. Counts the call. Safe from any thread, without the model's lock.
CUresult fault(Entry &entry);
// Ends what curb_sim_break has begun.
void repair();

}  // namespace curb::sim
