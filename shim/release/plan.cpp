#include "release/plan.hpp"

#include <atomic>
#include <chrono>
#include <cstring>
#include <optional>
#include <utility>

#include "captures.hpp"
#include "control/release_report.hpp"
#include "devices.hpp"
#include "idle.hpp"
#include "keep_errno.hpp"
#include "log.hpp"
#include "process.hpp"
#include "reports.hpp"
#include "worker.hpp"

namespace curb::shim::release {
namespace {

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point start) {
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// Memory of pools and of the mapping calls outlives the contexts.
bool in_use(const Device &device) noexcept {
    return device.contexts.load(std::memory_order_relaxed) > 0 || device.ledger.held() > 0;
}

// What this process holds of all devices, as the device says; where it does not see the process, what everybody holds.
std::int64_t held_on_devices() {
    std::int64_t sum = 0;
    for (int ordinal = 0; ordinal < devices::count(); ++ordinal) {
        Device &device = devices::at(ordinal);
        if (!in_use(device)) continue;
        auto figure = device.meter.held_by_process();
        if (!figure) figure = device.meter.used_by_all();
        sum += static_cast<std::int64_t>(figure.value_or(0));
    }
    return sum;
}

std::string take(policy::Step step) {
    using Body = std::string (*)();
    constexpr Body kBodies[] = {
#define CURB_STEP(name, text) &step::name,
#include "policy/release_steps.def"
    };
    return kBodies[static_cast<std::size_t>(step)]();
}

// The step, measured.
control::StepReport taken(policy::Step step) {
    const auto start = Clock::now();
    const std::int64_t before = held_on_devices();
    control::StepReport report;
    report.step = step;
    report.reason = take(step);
    report.freed = before - held_on_devices();
    report.milliseconds = milliseconds_since(start);
    return report;
}

// Steps that wait for the end of a capture, a bit each.
constinit std::atomic<unsigned> postponed{0};

void postpone(const std::vector<control::StepReport> &taken) noexcept {
    unsigned steps = 0;
    for (const control::StepReport &one : taken)
        if (one.reason == kCapture) steps |= 1U << static_cast<unsigned>(one.step);
    postponed.fetch_or(steps, std::memory_order_seq_cst);
    if (!captures::any()) no_capture();  // it ended before it could see that something waits for it
}

}  // namespace

void no_capture() noexcept try {
    if (postponed.load(std::memory_order_seq_cst) == 0) return;
    const KeepErrno keep_errno;
    const unsigned waiting = postponed.exchange(0, std::memory_order_seq_cst);
    std::vector<policy::Step> steps;
    for (const policy::Step step : policy::all_steps())
        if (waiting & 1U << static_cast<unsigned>(step)) steps.push_back(step);
    if (!steps.empty()) worker::release({"the end of a graph capture", {std::nullopt, std::move(steps)}});
} catch (...) {
    // Out of host memory: what was postponed waits for the next release.
}

void run(std::vector<Request> first, const std::function<std::vector<Request>()> &more) {
    policy::ReleasePlan plan(*process::snapshot().policy.release.steps);
    std::vector<Request> asked;
    const auto join = [&](std::vector<Request> requests) {
        for (Request &request : requests) {
            plan.join(request.what);
            asked.push_back(std::move(request));
        }
    };
    control::ReleaseReport report;
    report.trigger = first.front().trigger;
    const auto start = Clock::now();
    join(std::move(first));
    for (;;) {
        if (plan.open()) join(more());
        const auto step = plan.begin();
        if (!step) break;
        report.steps.push_back(taken(*step));
        plan.ended(report.steps.back().freed);
    }
    report.milliseconds = milliseconds_since(start);
    for (int ordinal = 0; ordinal < devices::count(); ++ordinal)
        if (in_use(devices::at(ordinal))) devices::reconcile(devices::at(ordinal));
    postpone(report.steps);
    process::fall_back();
    idle::released();
    log::write(policy::LogLevel::info, control::text(report));
    for (int ordinal = 0; ordinal < devices::count(); ++ordinal)
        if (in_use(devices::at(ordinal))) log::write(policy::LogLevel::info, reports::books_text(devices::at(ordinal)));
    for (const Request &request : asked)
        if (request.done) request.done(report);
}

}  // namespace curb::shim::release
