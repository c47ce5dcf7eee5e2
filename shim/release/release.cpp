#include "release/release.hpp"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <mutex>
#include <optional>
#include <utility>

#include "accounting/reconcile.hpp"
#include "admission/admission.hpp"
#include "admission/reports.hpp"
#include "base/keep_errno.hpp"
#include "base/lifetime.hpp"
#include "base/shortened.hpp"
#include "contexts/captures.hpp"
#include "device/activity.hpp"
#include "device/devices.hpp"
#include "driver/gate.hpp"
#include "host/clock.hpp"
#include "host/log.hpp"
#include "limits/in_force.hpp"
#include "release/allocators.hpp"
#include "threads/worker_signal.hpp"
#include "trace/trace.hpp"

namespace curb::shim::release {
namespace {

// Used by threads until the process is gone.
struct Shared {
    std::mutex mutex;
    std::vector<Request> queued;
    std::vector<control::PastRelease> history;
    bool running = false;
    std::uint64_t ended_ms = 0;  // of the last release
    unsigned postponed = 0;      // the steps that wait for the end of a capture, a bit each
};
Shared &shared() noexcept { return leaked<Shared>(); }

// Marks a release as running during the guard's lifetime.
class RunningGuard : NoCopy {
  public:
    RunningGuard() noexcept {
        const std::scoped_lock lock(shared().mutex);
        shared().running = true;
    }
    ~RunningGuard() {
        const std::uint64_t now = now_ms();
        const std::scoped_lock lock(shared().mutex);
        shared().running = false;
        shared().ended_ms = now;
    }
};

constexpr std::size_t kKept = 8;
constexpr std::size_t kSteps = 16;    // per release: a request may name a step many times
constexpr std::size_t kReason = 200;  // bytes; the text of a framework's exception can be of any length

void remember(const control::ReleaseReport &report) noexcept try {
    control::PastRelease one{control::unix_now(), report};
    if (one.report.steps.size() > kSteps) one.report.steps.resize(kSteps);
    for (auto &step : one.report.steps) step.reason = shortened(std::move(step.reason), kReason);
    const std::scoped_lock lock(shared().mutex);
    auto &releases = shared().history;
    releases.reserve(kKept);
    if (releases.size() == kKept) releases.erase(releases.begin());
    releases.push_back(std::move(one));
} catch (...) {
    // Out of host memory: the release is only in the log.
}

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point start) {
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// Returns the bytes that this process holds of the device, by NVML; if NVML does not list the process, by the ledger.
// nullopt while the process is out of its GPUs.
std::optional<Bytes> held_on(Device &device) {
    if (const auto figure = device.meter.held_by_process()) return figure;
    if (gate::is_closed()) return std::nullopt;
    reconcile(device);
    return device.ledger.held();
}

Outcome run_body(policy::Step step) {
    using Body = Outcome (*)();
    constexpr Body kBodies[] = {
#define CURB_STEP(name, ...) &step::name,
#include "policy/release_steps.def"
    };
    return kBodies[static_cast<std::size_t>(step)]();
}

// Runs a step and measures the bytes that it freed. A device of which the process holds more than before does not
// count, nor does one without a figure before or after the step: the process may be suspended during the step.
control::StepReport run_measured(policy::Step step) {
    const auto start = Clock::now();
    std::vector<std::pair<Device *, Bytes>> before;
    for (Device &device : devices::all())
        if (const auto held = devices::in_use(device) ? held_on(device) : std::nullopt)
            before.emplace_back(&device, *held);
    control::StepReport report;
    report.step = step;
    const Outcome outcome = run_body(step);
    report.reason = outcome.reason;
    for (const auto &[device, held] : before) {
        const auto left = outcome.tried ? held_on(*device) : std::nullopt;
        if (!left || *left >= held) continue;
        report.freed += static_cast<std::int64_t>(held - *left);
        device->counts.note_released(step, held - *left);
    }
    report.milliseconds = milliseconds_since(start);
    return report;
}

// Requests the postponed steps again once no graph capture is in progress. Runs within the program's call; does not
// wait.
void captures_ended() noexcept try {
    const KeepErrno keep_errno;
    unsigned waiting = 0;
    {
        const std::scoped_lock lock(shared().mutex);
        waiting = std::exchange(shared().postponed, 0);
    }
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
    {
        const std::scoped_lock lock(shared().mutex);
        shared().postponed |= steps;
    }
    if (!captures::any()) captures_ended();  // the capture ended before it could see the postponed steps
}

}  // namespace

bool ask(Request request) noexcept try {
    {
        const std::scoped_lock lock(shared().mutex);
        auto &waiting = shared().queued;
        const auto same = [&](const Request &one) {
            return !one.done && one.trigger == request.trigger && one.what == request.what;
        };
        if (!request.done && std::any_of(waiting.begin(), waiting.end(), same)) return true;
        waiting.push_back(std::move(request));
    }
    worker_signal::wake_up();
    return true;
} catch (...) {
    log::write(policy::LogLevel::error, "out of host memory: a requested release is dropped");
    return false;
}

void take_queued(std::vector<Request> &out) {
    const std::scoped_lock lock(shared().mutex);
    auto &requests = shared().queued;
    out.reserve(out.size() + requests.size());
    out.insert(out.end(), std::make_move_iterator(requests.begin()), std::make_move_iterator(requests.end()));
    requests.clear();
}

bool is_running() noexcept {
    const std::scoped_lock lock(shared().mutex);
    return shared().running;
}

std::uint64_t ended_ms() noexcept {
    const std::scoped_lock lock(shared().mutex);
    return shared().ended_ms;
}

std::vector<control::PastRelease> history() {
    const std::scoped_lock lock(shared().mutex);
    return shared().history;
}

void run(std::vector<Request> &requests, const std::function<void(std::vector<Request> &)> &more) {
    std::optional<RunningGuard> is_running(std::in_place);
    policy::ReleasePlan plan(*in_force::snapshot()->policy.release.steps);
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
        plan.ended(static_cast<Bytes>(report.steps.back().freed));
        trace::step(report.steps.back(), report.trigger);
    }
    report.milliseconds = milliseconds_since(start);
    for (Device &device : devices::all())
        if (devices::in_use(device)) reconcile(device);
    report.returns_nothing = allocators::returning_nothing();
    postpone(report.steps);
    admission::fall_back();
    activity::used = false;  // the release's own calls are no use of the GPU
    remember(report);
    log::write(policy::LogLevel::info, control::text(report));
    for (Device &device : devices::all())
        if (devices::in_use(device)) log::write(policy::LogLevel::info, reports::books_text(device));
    is_running.reset();  // a client that gets the result must not read "running" in the status
    for (const Request &request : requests)
        if (request.done) request.done(report);
    requests.clear();
}

}  // namespace curb::shim::release
