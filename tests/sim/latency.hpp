// CURB_SIM_LATENCY=h100: calls take the time that they take on the real card.
#pragma once

#include <cstdint>

namespace curb::sim {

// Spends what a call of `name` about `bytes` takes. Without the model's lock, so that threads wait side by side.
void spend_time_of(const char *name, uint64_t bytes);

}  // namespace curb::sim
