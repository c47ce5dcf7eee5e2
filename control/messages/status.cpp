#include "control/status.hpp"

#include <ctime>
#include <numeric>

namespace curb::control {

UnixMs unix_now() noexcept {
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    return UnixMs{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

std::uint64_t refused(const GpuStatus &gpu) {
    return std::accumulate(gpu.refused.begin(), gpu.refused.end(), std::uint64_t{0});
}

policy::Bytes released(const GpuStatus &gpu) {
    return std::accumulate(gpu.released.begin(), gpu.released.end(), policy::Bytes{0});
}

}  // namespace curb::control
