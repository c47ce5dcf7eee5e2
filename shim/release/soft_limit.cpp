#include "release/soft_limit.hpp"

#include "device/devices.hpp"
#include "driver/nvml.hpp"
#include "host/clock.hpp"
#include "release/release.hpp"

namespace curb::shim::soft_limit {
namespace {

// A limit may be set or changed after the container has started, and NVML sends no event, so poll.
constexpr std::uint64_t kWithoutLimitMs = 60'000, kWithLimitMs = 1000, kAgainMs = 10'000;

struct {
    std::uint64_t next_ms = 0, may_release_ms = 0;
} constinit due;  // used by the worker only

// Requests a release for each device above its soft limit. True if some device has such a limit.
bool check(std::uint64_t now) {
    bool limited = false;
    for (Device &device : devices::all()) {
        const auto above = devices::in_use(device) ? device.meter.above_soft_limit() : std::nullopt;
        limited |= above.has_value();
        if (above.value_or(0) == 0 || now < due.may_release_ms) continue;
        due.may_release_ms = now + kAgainMs;
        release::ask({"the soft limit of its cgroup", {*above, std::nullopt}});
    }
    return limited;
}

}  // namespace

std::optional<std::uint64_t> poll() noexcept {
    if (!nvml::has_memory_limits()) return std::nullopt;
    const std::uint64_t now = now_ms();
    if (now >= due.next_ms) due.next_ms = now + (check(now) ? kWithLimitMs : kWithoutLimitMs);
    return due.next_ms - now;
}

}  // namespace curb::shim::soft_limit
