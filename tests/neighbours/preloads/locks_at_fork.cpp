// A preload that takes a lock in functions that programs may call after fork, as libfaketime does. In a forked child
// the lock is never released, like a lock that another thread held at the fork.
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <ctime>

#include "preload.hpp"

namespace {

constinit std::atomic<unsigned long> taken{0};
constinit std::atomic<pid_t> holder{0};

void lock() {
    pid_t none = 0;
    holder.compare_exchange_strong(none, getpid());
    while (holder != getpid()) pause();
    taken.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

EXPORT int fstat(int fd, struct stat *status) noexcept {
    static constinit std::atomic<int (*)(int, struct stat *)> known{nullptr};
    lock();
    return next(known, "fstat")(fd, status);
}
EXPORT int close(int fd) {
    static constinit std::atomic<int (*)(int)> known{nullptr};
    lock();
    return next(known, "close")(fd);
}
EXPORT int clock_gettime(clockid_t clock, timespec *now) noexcept {
    static constinit std::atomic<int (*)(clockid_t, timespec *)> known{nullptr};
    lock();
    return next(known, "clock_gettime")(clock, now);
}

__attribute__((destructor)) static void at_end() {
    if (holder == getpid()) mark("taken", taken);
}
