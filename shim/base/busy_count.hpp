// Counts threads inside a short section, so that another thread can wait until none is inside.
//
// Waiters sleep on a futex and never spin or yield: a real-time thread that yields would keep the counted thread from
// running. An object must have static storage or live in a record that is never destroyed.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <ctime>
#include <optional>

#include "keep_errno.hpp"

namespace curb::shim {

class BusyCount {
  public:
    // Counts the calling thread during the guard's lifetime.
    class Guard {
      public:
        explicit Guard(BusyCount &count) noexcept : count_(count) { count_.busy_.fetch_add(1); }
        ~Guard() {
            if (count_.busy_.fetch_sub(1) == 1 && count_.waiting_.load() != 0) count_.wake();
        }
        Guard(const Guard &) = delete;
        Guard &operator=(const Guard &) = delete;

      private:
        BusyCount &count_;
    };

    // Waits until no thread is counted, at most `milliseconds`; nullopt waits without limit. Costs one load if none is.
    void wait(std::optional<std::uint64_t> milliseconds = std::nullopt) noexcept {
        if (busy_.load() != 0) sleep(milliseconds);
    }

  private:
    void wake() noexcept {
        const KeepErrno keep_errno;
        syscall(SYS_futex, &busy_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
    }
    void sleep(std::optional<std::uint64_t> milliseconds) noexcept {
        const KeepErrno keep_errno;
        const std::uint64_t ms = milliseconds.value_or(0);
        const timespec most{static_cast<std::time_t>(ms / 1000), static_cast<long>(ms % 1000) * 1'000'000};
        waiting_.fetch_add(1);
        for (std::uint32_t busy = 0; (busy = busy_.load()) != 0;) {
            const long result =
                syscall(SYS_futex, &busy_, FUTEX_WAIT_PRIVATE, busy, milliseconds ? &most : nullptr, nullptr, 0);
            if (result != 0 && errno == ETIMEDOUT) break;
        }
        waiting_.fetch_sub(1);
    }

    std::atomic<std::uint32_t> busy_{0};
    std::atomic<std::uint32_t> waiting_{0};
    static_assert(sizeof busy_ == 4 && decltype(busy_)::is_always_lock_free);
};

}  // namespace curb::shim
