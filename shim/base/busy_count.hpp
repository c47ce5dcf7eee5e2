// Counts the threads that are at some short work, and lets others wait until there are none.
//
// A waiting thread sleeps on a futex: one of real-time priority that yields instead keeps the thread that it waits for
// from running. In static storage, or in records that are never destroyed.
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
    // Counts the calling thread while it lives.
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

    // Returns once no thread is counted, or after so many milliseconds. nullopt: however long it takes. Costs one load
    // while none is counted.
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
