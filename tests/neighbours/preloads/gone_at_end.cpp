// A preload whose destructor takes away what its functions need, as libfaketime's does: who calls them later, while the
// process ends, crashes. Calls of other threads take their time, and the destructor waits for those that come too late.
#include <dlfcn.h>
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
        pass(3 * kMilliseconds);
        if (gone) abort();
    }
    return next(known, "fstat")(fd, status);
}

__attribute__((destructor)) static void at_end() {
    gone = true;
    pass(100 * kMilliseconds);
    mark("looks", looks);
}
