// The thread curb-worker: runs releases and what else may wait for the driver, NVML or the log, when it is woken
// (worker_signal.hpp). Never joined: it ends with the process.
#pragma once

#include <string>

namespace curb::shim::worker {

// Starts the thread. Once, by the first successful cuInit.
void start() noexcept;

// In a fork child, which has no such thread. Async-signal-safe.
void in_fork_child() noexcept;

// What a new policy or cap needs the driver for is to be done (process::settle).
void settle(bool measure_if_stale) noexcept;

// Reconciles every device in use, and calls `done` on the worker. `done` is the same in all calls.
void measure(void (*done)() noexcept) noexcept;

// A line for the log, at level info, from a thread that must not wait for it.
void say(std::string line) noexcept;

}  // namespace curb::shim::worker
