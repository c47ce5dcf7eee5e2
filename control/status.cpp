#include "control/status.hpp"

#include <numeric>

namespace curb::control {

std::uint64_t refused(const GpuStatus &gpu) {
    return std::accumulate(gpu.refused.begin(), gpu.refused.end(), std::uint64_t{0});
}

policy::Bytes released(const GpuStatus &gpu) {
    return std::accumulate(gpu.released.begin(), gpu.released.end(), policy::Bytes{0});
}

}  // namespace curb::control
