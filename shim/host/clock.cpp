#include "clock.hpp"

#include <ctime>

#include "real_libc.hpp"

namespace curb::shim {
namespace {

constinit real::ClockGettime *clock_gettime_of_libc = nullptr;  // cached: every request reads the clock

}  // namespace

void find_clock() noexcept { clock_gettime_of_libc = real::clock_gettime(); }

std::uint64_t now_ms() noexcept {
    timespec now{};
    clock_gettime_of_libc(CLOCK_MONOTONIC_COARSE, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1000 + static_cast<std::uint64_t>(now.tv_nsec) / 1'000'000;
}

std::uint64_t now_us() noexcept {
    timespec now{};
    clock_gettime_of_libc(CLOCK_MONOTONIC, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000 + static_cast<std::uint64_t>(now.tv_nsec) / 1000;
}

}  // namespace curb::shim
