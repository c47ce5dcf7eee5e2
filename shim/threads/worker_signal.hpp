// Wakes the worker (runtime/worker), which sleeps until something is due. Async-signal-safe, except sleep(). Keeps
// errno.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/waiting.hpp"

namespace curb::shim::worker_signal {

namespace detail {
struct Worker {
    FutexEvent woken;
    std::atomic<bool> signalled{false};
};
inline constinit Worker worker;
}  // namespace detail

// Wakes the worker to check what is due.
inline void wake_up() noexcept { detail::worker.woken.post(); }
// Wakes the worker because the release signal came.
inline void wake() noexcept {
    detail::worker.signalled = true;
    wake_up();
}

// The rest is for the worker. Sleeps until it is woken, at most `milliseconds`.
inline void sleep(std::uint64_t milliseconds) noexcept { detail::worker.woken.wait(milliseconds); }
// True if the release signal came since the last signal_served().
inline bool signal_came() noexcept { return detail::worker.signalled; }
// The same, and marks it as served.
inline bool signal_served() noexcept { return detail::worker.signalled.exchange(false); }

}  // namespace curb::shim::worker_signal
