// Futex wait and wake, and an event for one waiting thread (docs/decisions/0023).
//
// A futex needs no descriptor, which the program could close or reuse. Timeouts are durations, never points in time:
// another preload may shift the clocks or run them backwards (libfaketime), so a point in time may never come.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <ctime>

#include "keep_errno.hpp"

namespace curb::shim {

// Sleeps while `word` holds `value`, at most `milliseconds`. A signal may end the sleep early. No cancellation point.
// Keeps errno.
inline void futex_wait(std::atomic<std::uint32_t> &word, std::uint32_t value, std::uint64_t milliseconds) noexcept {
    static_assert(sizeof word == 4 && std::atomic<std::uint32_t>::is_always_lock_free);
    const KeepErrno keep_errno;
    const timespec most{static_cast<std::time_t>(milliseconds / 1000),
                        static_cast<long>(milliseconds % 1000) * 1'000'000};
    syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, &most, nullptr, 0);
}

// Wakes up to `threads` threads that wait on `word`. Async-signal-safe. Keeps errno.
inline void futex_wake(std::atomic<std::uint32_t> &word, int threads) noexcept {
    const KeepErrno keep_errno;
    syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, threads, nullptr, nullptr, 0);
}

// Must have static storage. One thread may wait.
class FutexEvent {
  public:
    // Async-signal-safe. Keeps errno.
    void post() noexcept {
        if (posted_.exchange(1, std::memory_order_seq_cst) == 0) futex_wake(posted_, 1);
    }

    // Sleeps until post(), at most `milliseconds`. Returns at once if post() ran since the last wait. A signal may end
    // the sleep early.
    void wait(std::uint64_t milliseconds) noexcept {
        futex_wait(posted_, 0, milliseconds);
        posted_.store(0, std::memory_order_seq_cst);
    }

  private:
    std::atomic<std::uint32_t> posted_{0};
};

}  // namespace curb::shim
