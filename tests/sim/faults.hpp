// CURB_SIM_FAULT, curb_sim_fail and its kin: make calls fail, or take longer.
#pragma once

#include "entry.hpp"

namespace curb::sim {

// Counts the call, and returns what it must fail with, or success. Thread-safe, without the model's lock.
CUresult fault(Entry &entry);
// At a call's end, without the model's lock: blocks until curb_sim_hold_return lets it return.
void hold_return(const Entry &entry);
// The primary context was reset. After an error that stays, that frees its memory, and none is made again.
void note_reset();

}  // namespace curb::sim
