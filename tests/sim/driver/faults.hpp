// CURB_SIM_FAULT, curb_sim_fail and its kin: make calls fail, or take longer.
#pragma once

#include "entry.hpp"

namespace curb::sim {

// Counts the call. Returns the error that it must fail with, or success. Thread-safe. Called without the model's lock.
CUresult fault(Entry &entry);
// At a call's end, without the model's lock: blocks until curb_sim_hold_return lets it return.
void hold_return(const Entry &entry);
// Notes that the primary context was reset. After a sticky error none is made again.
void note_reset();

}  // namespace curb::sim
