// A preload whose clocks run backwards, in the past, as a fake clock may.
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <ctime>

extern "C" __attribute__((visibility("default"))) int clock_gettime(clockid_t clock, timespec *time) noexcept {
    const long result = syscall(SYS_clock_gettime, clock, time);
    static_assert(CLOCK_REALTIME == 0 && CLOCK_MONOTONIC == 1);
    if (result == 0 && (clock == CLOCK_MONOTONIC || clock == CLOCK_REALTIME)) {
        // The clock begins at half the real time and runs backwards: each reading is earlier than the one before, and
        // in the past.
        static std::atomic<time_t> begins[2];
        std::atomic<time_t> &begin = begins[clock];
        time_t first = 0;
        if (begin.compare_exchange_strong(first, time->tv_sec)) first = time->tv_sec;
        time->tv_sec = first / 2 - (time->tv_sec - first);
        time->tv_nsec = 999'999'999 - time->tv_nsec;
    }
    return static_cast<int>(result);
}
