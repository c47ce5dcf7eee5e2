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

class Wakeup {
  public:
    // Async-signal-safe; leaves errno.
    void post() noexcept {
        const KeepErrno keep_errno;
        if (posted_.exchange(1, std::memory_order_seq_cst) == 0) futex(FUTEX_WAKE_PRIVATE, 1, nullptr);
    }

    // Until it is posted, or has been since the last wait; at most so long. A signal may end it early.
    void wait(std::uint64_t milliseconds) noexcept {
        const timespec most{static_cast<std::time_t>(milliseconds / 1000),
                            static_cast<long>(milliseconds % 1000) * 1'000'000};
        if (posted_.load(std::memory_order_seq_cst) == 0) futex(FUTEX_WAIT_PRIVATE, 0, &most);
        posted_.store(0, std::memory_order_seq_cst);
    }

  private:
    void futex(int operation, std::uint32_t value, const timespec *most) noexcept {
        static_assert(sizeof posted_ == 4 && decltype(posted_)::is_always_lock_free);
        syscall(SYS_futex, &posted_, operation, value, most, nullptr, 0);
    }

    std::atomic<std::uint32_t> posted_{0};
};

}  // namespace curb::shim
