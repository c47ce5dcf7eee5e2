// CURB_SIM_FAULT and curb_sim_fail: make a call fail.
#pragma once

#include "entry.hpp"

namespace curb::sim {

// What this call must return, or success. Counts the call. Safe from any thread, without the model's lock.
CUresult fault(Entry &entry);

}  // namespace curb::sim
