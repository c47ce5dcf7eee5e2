#include "admission/pressure.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/keep_errno.hpp"
#include "contexts/captures.hpp"
#include "device/devices.hpp"
#include "host/clock.hpp"
#include "host/log.hpp"
#include "limits/in_force.hpp"
#include "policy/values/granule.hpp"

namespace curb::shim {
namespace {

// A refusal costs more than a smaller request is worth. For cuMemCreate a single granule is excluded: PyTorch probes
// the device's features with one, and takes a refusal for "not supported".
bool is_large_enough(Bytes bytes, caller_match::Way way) noexcept {
    return way == caller_match::Way::direct ? bytes > policy::kGranule : bytes >= policy::kGranule;
}

bool may_refuse(Bytes bytes, caller_match::Way way) noexcept {
    if (!is_large_enough(bytes, way) || captures::any()) return false;
    const char *framework = caller_match::calling(way);
    return framework && !caller_match::answered_just_now(framework);
}

int this_thread() noexcept { return static_cast<int>(syscall(SYS_gettid)); }

bool is_alive(int thread) noexcept { return syscall(SYS_tgkill, getpid(), thread, 0) == 0 || errno != ESRCH; }

Bytes held(Device &device) noexcept { return device.meter.held_by_process().value_or(device.ledger.held()); }

}  // namespace

constinit std::array<Pressure, devices::kMost> Pressure::all{};

bool Pressure::is_quiet(std::uint64_t now_ms) noexcept {
    int thread = refused_thread_.load(std::memory_order_acquire);
    if (thread != 0 &&
        (is_alive(thread) || !refused_thread_.compare_exchange_strong(thread, 0, std::memory_order_acq_rel)))
        return true;
    return now_ms < quiet_until_.load(std::memory_order_acquire);
}

bool Pressure::start_refusal(Device &device, std::uint64_t now_ms) noexcept {
    const Bytes before = held(device);
    int none = 0;
    if (!refused_thread_.compare_exchange_strong(none, this_thread(), std::memory_order_acq_rel)) return false;
    // Another thread may have been refused and have retried since the check.
    if (now_ms < quiet_until_.load(std::memory_order_acquire)) {
        refused_thread_.store(0, std::memory_order_release);
        return false;
    }
    armed_until_.store(0, std::memory_order_release);
    held_before_.store(before, std::memory_order_release);
    return true;
}

bool Pressure::arm(std::uint64_t now_ms) noexcept {
    if (is_quiet(now_ms)) return false;
    armed_until_.store(now_ms + kArmedMs, std::memory_order_release);
    return true;
}

bool Pressure::check(Device &device, Bytes bytes, caller_match::Way way) noexcept {
    const KeepErrno keep_errno;
    const std::uint64_t now_ms = shim::now_ms();
    if (refused_thread_.load(std::memory_order_acquire) == this_thread()) {
        note_retry(device, now_ms);
        return false;
    }
    std::uint64_t until = armed_until_.load(std::memory_order_acquire);
    if (until == 0) return false;
    if (now_ms < until) return may_refuse(bytes, way) && start_refusal(device, now_ms);
    armed_until_.compare_exchange_strong(until, 0, std::memory_order_acq_rel);
    return false;
}

bool Pressure::refuses_growth(Device &device, Bytes bytes, caller_match::Way way) noexcept {
    const KeepErrno keep_errno;
    const auto in_use = process::snapshot();
    const auto &steps = *in_use->policy.release.steps;
    const std::uint64_t now_ms = shim::now_ms();
    return std::find(steps.begin(), steps.end(), policy::Step::pressure) != steps.end() && !is_quiet(now_ms) &&
           may_refuse(bytes, way) && start_refusal(device, now_ms);
}

void Pressure::note_retry(Device &device, std::uint64_t now_ms) noexcept {
    quiet_until_.store(now_ms + kQuietMs, std::memory_order_release);
    const Bytes before = held_before_.load(std::memory_order_acquire);
    refused_thread_.store(0, std::memory_order_release);
    if (!log::enabled(policy::LogLevel::info)) return;
    try {
        const Bytes now = held(device);
        log::write(policy::LogLevel::info, "pressure: an allocation on " + device.name() + " was refused once, and " +
                                               policy::format_human(before - std::min(before, now)) + " came back");
    } catch (...) {
        return;  // out of host memory: no log line
    }
}

}  // namespace curb::shim
