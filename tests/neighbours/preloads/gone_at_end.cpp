// A preload whose destructor deletes data that its functions need, as libfaketime's does: a later call, while the
// process ends, crashes. Calls of all threads but the main one are slow, and the destructor waits, so that a late call
// is caught.
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <ctime>

#include "preload.hpp"

namespace {

constexpr long kMilliseconds = 1'000'000;
constinit std::atomic<unsigned long> looks{0};
constinit std::atomic<bool> gone{false};

void pass(long nanoseconds) {
    const timespec moment{0, nanoseconds};
    nanosleep(&moment, nullptr);
}

}  // namespace

EXPORT int fstat(int fd, struct stat *status) noexcept {
    static constinit std::atomic<int (*)(int, struct stat *)> known{nullptr};
    if (gettid() != getpid()) {
        looks.fetch_add(1, std::memory_order_relaxed);
        pass(kMilliseconds);
        if (gone) abort();
    }
    return next(known, "fstat")(fd, status);
}

__attribute__((destructor)) static void at_end() {
    gone = true;
    pass(100 * kMilliseconds);
    mark("looks", looks);
}
