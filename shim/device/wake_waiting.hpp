// Wakes the requests that wait for memory (wait_queue.hpp). For code below the queue, such as the ledger.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/waiting.hpp"

namespace curb::shim::wait_queue {

namespace detail {
struct Waiters {
    std::atomic<int> listening{0};          // threads that wait
    std::atomic<std::uint32_t> changes{0};  // a futex
};
inline constinit Waiters waiters;
[[gnu::noinline, gnu::cold]] inline void wake() noexcept {
    ++waiters.changes;
    futex_wake(waiters.changes);
}
}  // namespace detail

// Wakes all waiting requests to try again. Call it when memory was freed, an allowance grew or the policy was edited.
// Costs one load if none waits. Thread-safe.
inline void changed() noexcept {
    if (detail::waiters.listening != 0) detail::wake();
}

// True if a request of this process waits. Costs one load. Thread-safe.
inline bool any() noexcept { return detail::waiters.listening != 0; }

}  // namespace curb::shim::wait_queue
