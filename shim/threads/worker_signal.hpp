// Wakes the worker (runtime/worker), which sleeps until something is due.
#pragma once

#include <cstdint>

namespace curb::shim::worker {

// The release signal came. Async-signal-safe: posts a futex and nothing else. Leaves errno.
void wake() noexcept;
// Something may be due now, or sooner than before. Async-signal-safe. Leaves errno.
void wake_up() noexcept;

// For the worker. Sleeps until it is woken, at most `milliseconds`.
void sleep(std::uint64_t milliseconds) noexcept;
// For the worker. Whether the release signal came since signal_served().
bool signal_came() noexcept;
// True if it came since the last call: it is served now.
bool signal_served() noexcept;

}  // namespace curb::shim::worker
