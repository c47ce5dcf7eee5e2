#include "history.hpp"

#include <atomic>
#include <mutex>
#include <utility>

#include "lifetime.hpp"
#include "shortened.hpp"

namespace curb::shim::release {
namespace {

constexpr std::size_t kKept = 8;
constexpr std::size_t kSteps = 16;    // per release: a request may name a step many times
constexpr std::size_t kReason = 200;  // bytes; the text of a framework's exception can be of any length

struct Past {
    std::mutex mutex;
    std::vector<control::PastRelease> releases;
};
Past &all() noexcept { return leaked<Past>(); }

constinit std::atomic<bool> running{false};

}  // namespace

RunningGuard::RunningGuard() noexcept { running.store(true, std::memory_order_release); }
RunningGuard::~RunningGuard() { running.store(false, std::memory_order_release); }
bool is_running() noexcept { return running.load(std::memory_order_acquire); }

void remember(const control::ReleaseReport &report) noexcept try {
    control::PastRelease one{control::unix_now(), report};
    if (one.report.steps.size() > kSteps) one.report.steps.resize(kSteps);
    for (auto &step : one.report.steps) step.reason = shortened(std::move(step.reason), kReason);
    const std::scoped_lock lock(all().mutex);
    auto &releases = all().releases;
    releases.reserve(kKept);
    if (releases.size() == kKept) releases.erase(releases.begin());
    releases.push_back(std::move(one));
} catch (...) {
    // Out of host memory: the release is only in the log.
}

std::vector<control::PastRelease> past() {
    const std::scoped_lock lock(all().mutex);
    return {all().releases.begin(), all().releases.end()};
}

}  // namespace curb::shim::release
