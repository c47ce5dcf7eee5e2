// The thread curb-worker. When woken (worker_signal.hpp) it runs releases and other work that may block on the driver,
// NVML or the log. Never joined: it ends with the process. Thread-safe.
#pragma once

namespace curb::shim::worker {

// Starts the thread. Called once, by the first successful cuInit.
void start() noexcept;

}  // namespace curb::shim::worker
