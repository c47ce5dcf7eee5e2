#include "refusals.hpp"

#include <algorithm>
#include <array>
#include <mutex>

namespace curb::shim::refusals {
namespace {

constinit std::mutex mutex;
constinit std::array<control::Refusal, kKept> ring{};
constinit std::size_t noted = 0;  // since the process began

}  // namespace

void note(Device &device, Bytes bytes, policy::Obstacle why, Bytes held, Bytes limit) noexcept {
    device.refused[static_cast<std::size_t>(why)].fetch_add(1, std::memory_order_relaxed);
    const control::UnixMs at = control::unix_now();
    const std::scoped_lock lock(mutex);
    ring[noted++ % kKept] = {at, device.ordinal, bytes, why, held, limit};
}

std::vector<control::Refusal> last() {
    std::vector<control::Refusal> out;
    out.reserve(kKept);  // before the lock, which the program's requests take
    const std::scoped_lock lock(mutex);
    for (std::size_t i = noted - std::min(noted, kKept); i < noted; ++i) out.push_back(ring[i % kKept]);
    return out;
}

}  // namespace curb::shim::refusals
