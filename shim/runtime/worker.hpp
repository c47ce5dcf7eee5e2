// The thread curb-worker. When woken (worker_signal.hpp) it runs releases and other work that may block on the driver,
// NVML or the log. Never joined: it ends with the process. Thread-safe.
#pragma once

#include <string>

namespace curb::shim::worker {

// Starts the thread. Called once, by the first successful cuInit.
void start() noexcept;

// Has the worker apply the parts of a new policy or cap that need driver calls (process::apply_with_driver).
void apply_with_driver(bool measure_if_stale) noexcept;

// Has the worker reconcile all devices in use and call `done`. `done` must be the same in all calls.
void measure(void (*done)() noexcept) noexcept;

// Has the worker log a line at level info, for threads that must not block on the log.
void log_later(std::string line) noexcept;

}  // namespace curb::shim::worker
