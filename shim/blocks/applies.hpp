// Says if this process's memory is made so that curb can move it.
#pragma once

#include "abi/cuda_abi.h"
#include "policy/policy.hpp"

namespace curb::shim::blocks {

// True if the policy has naps that are light, no several ranks talk, and each device has virtual memory management.
// Decided at the first call, which must come after the first cuInit: memory that was made one way cannot become the
// other. Thread-safe. The first call calls the driver.
bool applies() noexcept;
// False where a GPU shares the host's memory, and once it is decided that it does not apply. Decides nothing.
bool may_apply() noexcept;
// True if the process takes turns on its GPUs: the policy has them, and curb can move its memory. Takes a lock if the
// policy has turns.
inline bool takes_turns(const policy::SuspendPolicy &policy) noexcept { return policy.turn && may_apply(); }
// Returns why it does not apply, for users. Empty if it does. Thread-safe.
const char *why_not() noexcept;

// Records that a kernel of the program has used a wrong address, and warns once: behind the end of a block is nothing,
// where a block of cuMemAlloc has a neighbour. Does nothing where curb makes no blocks. Thread-safe.
void note_illegal_address() noexcept;
// True if that has been recorded. Thread-safe.
bool has_seen_illegal_address() noexcept;
// Returns the result of a call of the program. Costs a comparison.
inline CUresult noted(CUresult result) noexcept {
    if (result == CUDA_ERROR_ILLEGAL_ADDRESS) [[unlikely]]
        note_illegal_address();
    return result;
}

}  // namespace curb::shim::blocks
