// What a thread of curb's sleeps on: no descriptor that the program could close, or open as one of its own, and may be
// posted in a signal handler (docs/decisions/0023). In static storage. One thread waits.
//
// By the kernel's own measure of how long, and not until a time that a clock tells: the clocks that a program sees may
// be another preload's, which run from another beginning, or backwards (libfaketime), and such a time may always be
// past.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <ctime>

#include "keep_errno.hpp"

namespace curb::shim {

// Waits while the word has that value, for so long at the most by the kernel's own measure. A signal may end it early.
// No cancellation point. Leaves errno.
inline void futex_wait(std::atomic<std::uint32_t> &word, std::uint32_t value, std::uint64_t milliseconds) noexcept {
    static_assert(sizeof word == 4 && std::atomic<std::uint32_t>::is_always_lock_free);
    const KeepErrno keep_errno;
    const timespec most{static_cast<std::time_t>(milliseconds / 1000),
                        static_cast<long>(milliseconds % 1000) * 1'000'000};
    syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, &most, nullptr, 0);
}

// Wakes so many of those who wait for the word. Async-signal-safe. Leaves errno.
inline void futex_wake(std::atomic<std::uint32_t> &word, int threads) noexcept {
    const KeepErrno keep_errno;
    syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, threads, nullptr, nullptr, 0);
}

class FutexEvent {
  public:
    // Async-signal-safe; leaves errno.
    void post() noexcept {
        if (posted_.exchange(1, std::memory_order_seq_cst) == 0) futex_wake(posted_, 1);
    }

    // Until it is posted, or has been since the last wait; at most so long. A signal may end it early.
    void wait(std::uint64_t milliseconds) noexcept {
        futex_wait(posted_, 0, milliseconds);
        posted_.store(0, std::memory_order_seq_cst);
    }

  private:
    std::atomic<std::uint32_t> posted_{0};
};

}  // namespace curb::shim
