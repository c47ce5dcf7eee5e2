// CURB_SIM_LATENCY=h100: calls take as long as on the real card.
#pragma once

#include <cstdint>

namespace curb::sim {

// Waits as long as a call of `name` with this size takes. Called without the model's lock, so that threads wait in
// parallel.
void spend_time_of(const char *name, uint64_t bytes);

}  // namespace curb::sim
