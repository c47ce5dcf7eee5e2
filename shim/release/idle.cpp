#include "release/idle.hpp"

#include <algorithm>
#include <utility>

#include "base/lifetime.hpp"
#include "device/activity.hpp"
#include "device/devices.hpp"
#include "host/clock.hpp"
#include "host/log.hpp"
#include "limits/in_force.hpp"
#include "policy/decisions/idle.hpp"
#include "policy/values/duration.hpp"
#include "release/release.hpp"

namespace curb::shim::idle {
namespace {

// How long NVML still reports a release's own work as use of the device (seen on an H200).
constexpr std::uint64_t kNvmlLagMs = 1500;

struct State {
    policy::IdlePeriod period{now_ms()};
    std::uint64_t sampled_ms = now_ms(), used_ms = 0;

    void poll(policy::Duration idle) {
        const std::uint64_t now = now_ms();
        if (const std::uint64_t used = activity::last_used_ms(now); used > std::exchange(used_ms, used))
            period.used(used);
        const std::uint64_t ours_until = release::ended_ms() + kNvmlLagMs;
        if (now < ours_until || (now - sampled_ms < kSampleMs && !period.due(now, idle))) return;
        if (const auto when = seen_running(std::max(sampled_ms, ours_until))) period.used(*when);
        sampled_ms = now;
        if (!period.due(now, idle)) return;
        period.served();
        release::ask({"idle for " + policy::format(idle)});
    }
};

}  // namespace

std::optional<std::uint64_t> seen_running(std::uint64_t since_ms) noexcept {
    std::optional<std::uint64_t> last;
    for (Device &device : devices::all()) {
        if (!devices::in_use(device)) continue;
        const auto age = device.meter.last_run(now_ms() - since_ms);
        if (!age) continue;
        const std::uint64_t when = now_ms() - *age;
        if (!last || when > *last) last = when;
    }
    return last;
}

std::optional<std::uint64_t> poll() noexcept try {
    auto &state = leaked<std::optional<State>>();
    const auto after = in_force::snapshot()->policy.release.idle;
    if (!after) {
        state.reset();
        return std::nullopt;
    }
    if (!state) state.emplace();
    state->poll(*after);
    return policy::IdlePeriod::poll_interval_ms(*after);
} catch (...) {
    log::write(policy::LogLevel::error, "out of host memory: no release for this idle period");
    return policy::IdlePeriod::poll_interval_ms(policy::Duration::max());
}

}  // namespace curb::shim::idle
