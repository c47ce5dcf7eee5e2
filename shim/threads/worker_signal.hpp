// Wakes the worker (runtime/worker), which sleeps until something is due.
#pragma once

#include <cstdint>

namespace curb::shim::worker {

// Wakes the worker because the release signal came. Async-signal-safe. Keeps errno.
void wake() noexcept;
// Wakes the worker to check what is due. Async-signal-safe. Keeps errno.
void wake_up() noexcept;

// The rest is for the worker. Sleeps until it is woken, at most `milliseconds`.
void sleep(std::uint64_t milliseconds) noexcept;
// True if the release signal came since the last signal_served().
bool signal_came() noexcept;
// The same, and marks it as served.
bool signal_served() noexcept;

}  // namespace curb::shim::worker
