#include "admission/pressure.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>

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
    if (refused_thread_ != 0 && is_alive(refused_thread_)) return true;
    refused_thread_ = 0;
    changed();
    return now_ms < quiet_until_ms_;
}

bool Pressure::start_refusal(Device &device, std::uint64_t now_ms) noexcept {
    const Bytes before = held(device);  // asks NVML, so not under the lock
    const std::scoped_lock lock(mutex_);
    if (is_quiet(now_ms)) return false;
    refused_thread_ = this_thread();
    armed_until_ms_ = 0;
    held_before_ = before;
    changed();
    return true;
}

bool Pressure::arm(std::uint64_t now_ms) noexcept {
    const std::scoped_lock lock(mutex_);
    if (is_quiet(now_ms)) return false;
    armed_until_ms_ = now_ms + kArmedMs;
    changed();
    return true;
}

bool Pressure::check(Device &device, Bytes bytes, caller_match::Way way) noexcept {
    const KeepErrno keep_errno;
    const std::uint64_t now_ms = shim::now_ms();
    bool is_retry = false, is_armed = false;
    {
        const std::scoped_lock lock(mutex_);
        is_retry = refused_thread_ == this_thread();
        is_armed = now_ms < armed_until_ms_;
        if (!is_retry && !is_armed) armed_until_ms_ = 0;
        changed();
    }
    if (is_retry) note_retry(device, now_ms);
    return !is_retry && is_armed && may_refuse(bytes, way) && start_refusal(device, now_ms);
}

bool Pressure::refuses_growth(Device &device, Bytes bytes, caller_match::Way way) noexcept {
    const KeepErrno keep_errno;
    const auto in_use = in_force::snapshot();
    const auto &steps = *in_use->policy.release.steps;
    if (std::find(steps.begin(), steps.end(), policy::Step::pressure) == steps.end()) return false;
    const std::uint64_t now_ms = shim::now_ms();
    {
        const std::scoped_lock lock(mutex_);
        if (is_quiet(now_ms)) return false;  // spares the walk up the stack
    }
    return may_refuse(bytes, way) && start_refusal(device, now_ms);
}

void Pressure::note_retry(Device &device, std::uint64_t now_ms) noexcept {
    Bytes before = 0;
    {
        const std::scoped_lock lock(mutex_);
        quiet_until_ms_ = now_ms + kQuietMs;
        before = held_before_;
        refused_thread_ = 0;
        changed();
    }
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
