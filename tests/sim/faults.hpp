// CURB_SIM_FAULT, curb_sim_fail and its kin: make calls fail, or take longer.
#pragma once

#include "entry.hpp"

namespace curb::sim {

// What this call must return, or success. Counts the call. Safe from any thread, without the model's lock.
CUresult fault(Entry &entry);
// At a call's end, without the model's lock: returns when curb_sim_hold_return lets it.
void hold_return(const Entry &entry);
// Ends what curb_sim_break has begun.
void repair();

}  // namespace curb::sim
