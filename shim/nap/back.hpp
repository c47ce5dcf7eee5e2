// The ways back to the GPUs, on the thread curb-nap.
#pragma once

#include <cstdint>
#include <optional>

#include "abi/cuda_abi.h"

namespace curb::shim::nap {

// Returns where the process is. nullopt if the driver cannot move processes.
std::optional<CUprocessState> state_by_driver() noexcept;
bool is_in_its_gpus() noexcept;

// Returns when the driver says that the process is in its GPUs, whatever a helper says. Brings it back if needed, by as
// many helpers as it takes. Waits for room without limit.
void bring_back_deeply();

// Brings back what curb has moved. Waits for room without limit, unless `once`. False if it is still out: also where
// the driver has ended with the process, and then waiting calls have returned.
bool bring_back_lightly(bool once);

// Gives back the host memory of moves that the process should not keep for its next nap. Thread-safe. May throw
// std::bad_alloc.
void trim_host_memory();

// Records since when there has been no room for what comes back, or that there is.
void note_room(bool is_missing);

// Sleeps without keeping exit() waiting.
void sleep_asleep(std::uint64_t milliseconds) noexcept;

}  // namespace curb::shim::nap
