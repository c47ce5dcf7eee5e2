// A preload whose clocks all stand still, in the past: libfaketime with an absolute time.
#include <ctime>

extern "C" __attribute__((visibility("default"))) int clock_gettime(clockid_t, timespec *time) noexcept {
    *time = {1000, 0};
    return 0;
}
