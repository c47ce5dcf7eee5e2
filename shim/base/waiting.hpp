// Ways to wait: for a time, for a condition, on a futex, for an event, for other threads to leave a section.
//
// A futex needs no descriptor, which the program could close or reuse (docs/decisions/0023). Timeouts are durations:
// another preload may shift the clocks or run them backwards (libfaketime), so a point in time may never come. No
// function here is a cancellation point, and all keep errno.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>
#include <optional>

#include "base/keep_errno.hpp"

namespace curb::shim {

// Sleeps for this long; a signal may end the sleep early.
inline void sleep_us(std::uint64_t microseconds) noexcept {
    const KeepErrno keep_errno;
    const timespec time{static_cast<std::time_t>(microseconds / 1'000'000),
                        static_cast<long>(microseconds % 1'000'000) * 1000};
    nanosleep(&time, nullptr);
}
inline void sleep_ms(std::uint64_t milliseconds) noexcept { sleep_us(milliseconds * 1000); }

// Calls `done` every `pause_us` until it returns true, for about `milliseconds`. Returns its last result. Also limits
// the number of calls, because the clock may be a false one. Signals shorten the wait but never prolong it.
template <class Done>
bool poll_until(Done done, std::uint64_t milliseconds, std::uint64_t pause_us = 1000) {
    using Clock = std::chrono::steady_clock;
    const auto until = Clock::now() + std::chrono::milliseconds(milliseconds);
    for (std::uint64_t polls = milliseconds * 1000 / pause_us; !done(); --polls) {
        if (polls == 0 || Clock::now() >= until) return false;
        sleep_us(pause_us);
    }
    return true;
}

// Sleeps while `word` holds `value`, at most `milliseconds`; nullopt: without limit. A signal may end the sleep early.
// Where a filter of system calls forbids futex, it ends after 1 ms, so that the caller polls. False if the time is
// over.
inline bool futex_wait(std::atomic<std::uint32_t> &word, std::uint32_t value,
                       std::optional<std::uint64_t> milliseconds) noexcept {
    static_assert(sizeof word == 4 && std::atomic<std::uint32_t>::is_always_lock_free);
    const KeepErrno keep_errno;
    const std::uint64_t ms = milliseconds.value_or(0);
    const timespec most{static_cast<std::time_t>(ms / 1000), static_cast<long>(ms % 1000) * 1'000'000};
    if (syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, milliseconds ? &most : nullptr, nullptr, 0) == 0)
        return true;
    if (errno == ETIMEDOUT) return false;
    if (errno != EAGAIN && errno != EINTR) sleep_ms(1);
    return true;
}

// Wakes up to `threads` threads that wait on `word`. Async-signal-safe.
inline void futex_wake(std::atomic<std::uint32_t> &word, int threads = INT_MAX) noexcept {
    const KeepErrno keep_errno;
    syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, threads, nullptr, nullptr, 0);
}

// An event for one waiting thread. Must have static storage.
class FutexEvent {
  public:
    // Async-signal-safe.
    void post() noexcept {
        if (posted_.exchange(1) == 0) futex_wake(posted_, 1);
    }
    // Sleeps until post(), at most `milliseconds`. Returns at once if post() ran since the last wait. A signal may end
    // the sleep early.
    void wait(std::uint64_t milliseconds) noexcept {
        futex_wait(posted_, 0, milliseconds);
        posted_.exchange(0);  // synchronises with the post() whose 1 it reads
    }

  private:
    std::atomic<std::uint32_t> posted_{0};
};

// Counts threads inside a short section, so that another thread can wait until none is inside. Waiters never spin or
// yield: a real-time thread that yields would keep the counted thread from running. An object must have static storage
// or live in a record that is never destroyed.
class BusyCount {
  public:
    // Counts the calling thread during the guard's lifetime.
    class Guard : NoCopy {
      public:
        explicit Guard(BusyCount &count) noexcept : count_(count) { count_.busy_.fetch_add(1); }
        ~Guard() {
            if (count_.busy_.fetch_sub(1) == 1 && count_.waiting_.load() != 0) futex_wake(count_.busy_);
        }

      private:
        BusyCount &count_;
    };

    // Waits until no thread is counted, at most `milliseconds`; nullopt: without limit. Costs one load if none is
    // counted.
    void wait(std::optional<std::uint64_t> milliseconds = std::nullopt) noexcept {
        using Clock = std::chrono::steady_clock;
        if (busy_.load() == 0) return;
        const auto begun = Clock::now();
        const auto left = [&]() -> std::optional<std::uint64_t> {
            if (!milliseconds) return std::nullopt;
            const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begun).count();
            return *milliseconds - std::min(*milliseconds, static_cast<std::uint64_t>(took));
        };
        waiting_.fetch_add(1);
        for (std::uint32_t busy = 0; (busy = busy_.load()) != 0 && left() != 0 && futex_wait(busy_, busy, left());) {
        }
        waiting_.fetch_sub(1);
    }

  private:
    std::atomic<std::uint32_t> busy_{0};
    std::atomic<std::uint32_t> waiting_{0};
};

// What one thread may do at a time. Unlike a lock, a thread may keep it across a driver call, because no other thread
// waits for it without limit. An object must have static storage.
class OneAtATime {
  public:
    // Waits at most `milliseconds`. False if another thread still has it then.
    bool take(std::uint64_t milliseconds) noexcept {
        std::uint32_t seen = kFree;
        if (word_.compare_exchange_strong(seen, kTaken)) return true;
        const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds);
        while (word_.exchange(kAwaited) != kFree) {
            const auto left = until - std::chrono::steady_clock::now();
            const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(left).count();
            if (ms <= 0 || !futex_wait(word_, kAwaited, static_cast<std::uint64_t>(ms))) return false;
        }
        return true;
    }
    void give_back() noexcept {
        if (word_.exchange(kFree) == kAwaited) futex_wake(word_, 1);
    }

  private:
    static constexpr std::uint32_t kFree = 0, kTaken = 1, kAwaited = 2;  // kAwaited: taken, and others wait
    std::atomic<std::uint32_t> word_{kFree};
};

}  // namespace curb::shim
