#include "plan.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <optional>
#include <utility>

#include "admission.hpp"
#include "allocators.hpp"
#include "captures.hpp"
#include "control/release_report.hpp"
#include "devices.hpp"
#include "history.hpp"
#include "idle.hpp"
#include "in_force.hpp"
#include "keep_errno.hpp"
#include "log.hpp"
#include "reconcile.hpp"
#include "reports.hpp"
#include "trace.hpp"

namespace curb::shim::release {
namespace {

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point start) {
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

using Figures = std::array<std::int64_t, devices::kMost>;

// Returns the devices of which the process may hold memory.
std::vector<int> in_use() {
    std::vector<int> out;
    for (int ordinal = 0; ordinal < devices::count(); ++ordinal)
        if (devices::in_use(devices::at(ordinal))) out.push_back(ordinal);
    return out;
}

// Returns the bytes that this process holds of each device, by NVML. If NVML does not see the process, the bytes that
// all processes hold.
Figures held_on(const std::vector<int> &ordinals) {
    Figures out{};
    for (const int ordinal : ordinals) {
        Device &device = devices::at(ordinal);
        auto figure = device.meter.held_by_process();
        if (!figure) figure = device.meter.used_by_all();
        out[static_cast<std::size_t>(ordinal)] = static_cast<std::int64_t>(figure.value_or(0));
    }
    return out;
}

std::string run_body(policy::Step step) {
    using Body = std::string (*)();
    constexpr Body kBodies[] = {
#define CURB_STEP(name, text) &step::name,
#include "policy/release_steps.def"
    };
    return kBodies[static_cast<std::size_t>(step)]();
}

// Runs a step and measures the bytes that it freed. A device whose use grew meanwhile counts as negative.
control::StepReport run_measured(policy::Step step) {
    const auto start = Clock::now();
    const std::vector<int> ordinals = in_use();
    const Figures before = held_on(ordinals);
    control::StepReport report;
    report.step = step;
    report.reason = run_body(step);
    const Figures after = held_on(ordinals);
    for (const int ordinal : ordinals) {
        const std::int64_t freed = before[static_cast<std::size_t>(ordinal)] - after[static_cast<std::size_t>(ordinal)];
        report.freed += freed;
        if (freed > 0)
            devices::at(ordinal).released[static_cast<std::size_t>(step)].fetch_add(static_cast<Bytes>(freed),
                                                                                    std::memory_order_relaxed);
    }
    report.milliseconds = milliseconds_since(start);
    return report;
}

// The steps that wait for the end of a capture, a bit each.
constinit std::atomic<unsigned> postponed{0};

// Requests the postponed steps again once no graph capture is in progress. Runs within the program's call; does not
// wait.
void captures_ended() noexcept try {
    if (postponed.load(std::memory_order_seq_cst) == 0) return;
    const KeepErrno keep_errno;
    const unsigned waiting = postponed.exchange(0, std::memory_order_seq_cst);
    std::vector<policy::Step> steps;
    for (const policy::Step step : policy::all_steps())
        if (waiting & 1U << static_cast<unsigned>(step)) steps.push_back(step);
    if (!steps.empty()) release::ask({"the end of a graph capture", {std::nullopt, std::move(steps)}});
} catch (...) {
    // Out of host memory: the postponed steps run with the next release.
}

void postpone(const std::vector<control::StepReport> &steps_run) noexcept {
    unsigned steps = 0;
    for (const control::StepReport &one : steps_run)
        if (one.reason == kCapture) steps |= 1U << static_cast<unsigned>(one.step);
    captures::when_the_last_ends(captures_ended);
    postponed.fetch_or(steps, std::memory_order_seq_cst);
    if (!captures::any()) captures_ended();  // the capture ended before it could see the postponed steps
}

}  // namespace

void run(std::vector<Request> &requests, const std::function<void(std::vector<Request> &)> &more) {
    std::optional<RunningGuard> is_running(std::in_place);
    policy::ReleasePlan plan(*process::snapshot()->policy.release.steps);
    std::size_t joined = 0;
    const auto join = [&] {
        for (; joined < requests.size(); ++joined) plan.join(requests[joined].what);
    };
    control::ReleaseReport report;
    report.trigger = requests.front().trigger;
    const auto start = Clock::now();
    join();
    for (;;) {
        if (plan.open()) {
            more(requests);
            join();
        }
        const auto step = plan.begin();
        if (!step) break;
        report.steps.push_back(run_measured(*step));
        plan.ended(report.steps.back().freed);
        trace::step(report.steps.back(), report.trigger);
    }
    report.milliseconds = milliseconds_since(start);
    for (const int ordinal : in_use()) reconcile(devices::at(ordinal));
    report.returns_nothing = allocators::returning_nothing();
    postpone(report.steps);
    admission::fall_back();
    idle::released();
    remember(report);
    log::write(policy::LogLevel::info, control::text(report));
    for (const int ordinal : in_use()) log::write(policy::LogLevel::info, reports::books_text(devices::at(ordinal)));
    is_running.reset();  // a client that gets the result must not read "running" in the status
    for (const Request &request : requests)
        if (request.done) request.done(report);
    requests.clear();
}

}  // namespace curb::shim::release
