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

// For the worker. The process whose worker runs; 0 in a fork child, which has none. Async-signal-safe.
void set_process(int pid) noexcept;
// For the worker. Marks it busy until end_work(). False if the process is ending.
bool begin_work() noexcept;
void end_work() noexcept;

// For exit functions. A release must not run during the program's static destructors, nor NVML's: the worker starts
// nothing more, and a running release gets 200 ms to finish. Not longer, because it may wait for a lock that the
// exiting thread holds. Returns at once in a fork child. Leaves errno.
void stop_at_exit() noexcept;

}  // namespace curb::shim::worker
