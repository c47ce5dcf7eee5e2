// CURB_SIM_LATENCY=h100: calls take as long as on the real card.
#pragma once

#include <chrono>
#include <cstdint>

namespace curb::sim {

// Waits as long as a call of `name` with this size takes. Called without the model's lock, so that threads wait in
// parallel.
void spend_time_of(const char *name, uint64_t bytes);

// How long a copy between host and device takes on an idle bus; 0 without the setting. The driver copies from and to
// pageable memory by itself, which is slower; most of all into memory that has no pages yet.
enum class Bus { pinned, pageable_in, pageable_out };
std::chrono::nanoseconds time_of_copy(Bus bus, uint64_t bytes);

}  // namespace curb::sim
