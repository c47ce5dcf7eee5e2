// Keeps the process's file on the board (control/board.hpp), by which other users see what it holds and waits for.
#pragma once

#include <cstdint>

namespace curb::shim::posting {

// Writes the file if it is to say something new, at most once a second unless the state has changed. Deletes it while
// the process uses no GPU, and if the policy shares nothing. On the worker. Returns the milliseconds until the next
// call. Calls NVML if the process seems idle.
std::uint64_t poll() noexcept;

}  // namespace curb::shim::posting
