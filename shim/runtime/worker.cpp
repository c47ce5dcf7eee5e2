#include "runtime/worker.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "accounting/reconcile.hpp"
#include "admission/caller_match.hpp"
#include "admission/reports.hpp"
#include "base/waiting.hpp"
#include "cache/cache.hpp"
#include "device/devices.hpp"
#include "host/log.hpp"
#include "limits/limits.hpp"
#include "nap/nap.hpp"
#include "policy/names.hpp"
#include "pools/pools.hpp"
#include "release/idle.hpp"
#include "release/release.hpp"
#include "release/soft_limit.hpp"
#include "runtime/posting.hpp"
#include "runtime/runtime.hpp"
#include "runtime/worker_queue.hpp"
#include "threads/last_thread.hpp"
#include "threads/own_thread.hpp"
#include "threads/signals.hpp"
#include "threads/worker_signal.hpp"
#include "trace/trace.hpp"

namespace curb::shim::worker {
namespace {

using Next = std::optional<std::uint64_t>;  // milliseconds until the next check; nullopt: none is due

// Adds the newly requested releases; any number of signals is one request. Throws std::bad_alloc before it takes any.
void take_requests(std::vector<release::Request> &out) {
    if (worker_signal::signal_came()) {
        release::Request request{policy::signal_name(*in_force::snapshot()->policy.release.signal)};
        out.reserve(out.size() + 1);
        if (worker_signal::signal_served()) out.push_back(std::move(request));
    }
    release::take_queued(out);
}

// Sleeps until the worker is woken, or for this long.
void sleep_for(Next milliseconds) noexcept {
    constexpr std::uint64_t kLongest = 86'400'000;
    worker_signal::sleep(std::min(milliseconds.value_or(kLongest), kLongest));
}

// Runs the work that other threads have queued. False if there was none.
bool do_what_is_due() {
    const Work work = take_work();
    for (const std::string &line : work.lines) log::write(policy::LogLevel::info, line);
    if (work.set_caps) work.set_caps();
    if (work.apply_with_driver) runtime::apply_with_driver(work.measure_if_stale);
    for (Device &device : devices::all()) {
        const bool soon = device.freshness.take_soon();
        if ((!work.measured && !soon) || !devices::in_use(device) || gate::is_closed()) continue;
        reconcile(device);
    }
    if (work.measured) work.measured();
    return work.set_caps || work.apply_with_driver || work.measured || !work.lines.empty();
}

// While the process holds more than it may, lowers the pools' release thresholds, so that they return all unused memory
// at the program's next synchronisation. Then restores the program's thresholds.
Next adjust_thresholds() noexcept {
    constexpr std::uint64_t kPollMs = 100;
    static std::array<bool, devices::kMost> lowered{};
    bool any = false;
    for (Device &device : devices::all()) {
        bool &is_lowered = lowered[static_cast<std::size_t>(device.ordinal)];
        if (is_lowered) reconcile(device);  // to see the memory returned at a synchronisation
        const bool beyond = device.ledger.of(Kind::pools) != 0 && limits::must_shrink(device, *in_force::snapshot());
        if (beyond) pools::lower_thresholds(device);
        if (is_lowered && !beyond) pools::restore_thresholds(device);
        is_lowered = beyond;
        any = any || beyond;
    }
    return any ? Next(kPollMs) : std::nullopt;
}

// While there is a trace, measures as under a cap: the trace shows what the driver holds.
Next measure_for_trace() noexcept {
    if (!trace::on()) return std::nullopt;
    for (Device &device : devices::all())
        if (devices::in_use(device) && device.freshness.age_ms() >= policy::Staleness::kFarMs) reconcile(device);
    return policy::Staleness::kFarMs;
}

Next sooner(Next a, Next b) noexcept {
    if (!a || !b) return a ? a : b;
    return std::min(*a, *b);
}

// Does the periodic work that is due: frees blocks kept too long, requests a release of an idle process, has pools
// return more memory while the process is above its limit. Returns the milliseconds until the next call. nullopt: only
// after wake_up().
Next do_periodic_work() noexcept {
    trace::log_error();
    for (const Device &device : devices::all()) limits::update_job(device);
    if (signals::program_has_set()) runtime::check_signal();
    const Next nap = sooner(nap::poll(), posting::poll());
    // While the gate is closed, or a nap is about to close it, the worker must not call the driver: the call would wait
    // until the gate opens.
    if (gate::is_closed() || nap::is_under_way()) return sooner(nap, last_thread::poll());
    const Next release = sooner(idle::poll(), soft_limit::poll());
    const Next next = sooner(sooner(cache::sweep(), release), sooner(adjust_thresholds(), last_thread::poll()));
    return sooner(sooner(nap, measure_for_trace()), next);
}

constinit struct {
    std::atomic<bool> is_ending{false};
    std::atomic<std::uint32_t> is_logged{0};  // a futex
} sum;

void sum_up_if_ending() noexcept {
    if (!sum.is_ending || sum.is_logged != 0) return;
    reports::sum_up();
    sum.is_logged = 1;
    futex_wake(sum.is_logged);
}

// Logs how many requests were refused, when the program ends. The exiting thread only waits: a signal handler may have
// called exit while that thread was in malloc, or held the log's lock.
void sum_up() noexcept {
    constexpr std::uint64_t kMostMs = 200;
    if (!reports::has_sum()) return;
    sum.is_ending = true;
    if (own_thread::is_own()) return sum_up_if_ending();  // it ends a program whose threads have all left
    worker_signal::wake_up();
    futex_wait(sum.is_logged, 0, kMostMs);
}

// Runs the queued work. Returns the milliseconds to sleep then; 0 if there may be more. While the gate is closed,
// releases wait: the process is out of its GPUs, so it has nothing to release and NVML has no figure of it.
Next work(std::vector<release::Request> &waiting) {
    constexpr std::uint64_t kGatePollMs = 1000;
    const own_thread::Awake awake;
    sum_up_if_ending();
    take_requests(waiting);
    if (!waiting.empty()) gate::open_if_abandoned();
    if (!waiting.empty() && !gate::is_closed()) {
        release::run(waiting, take_requests);
        return 0;
    }
    const Next next = do_what_is_due() ? Next(0) : do_periodic_work();
    return waiting.empty() ? next : sooner(next, kGatePollMs);
}

void run_releases() {
    caller_match::inspect_libraries();  // growth steps need it before the first release
    std::vector<release::Request> waiting;
    for (;;) {
        try {
            const Next next = work(waiting);
            if (next == Next(0)) continue;
            last_thread::end_if_alone();
            sleep_for(next);
        } catch (...) {
            sleep_ms(50);  // out of host memory: try again later
        }
    }
}

}  // namespace

void start() noexcept {
    cache::on_first_kept(worker_signal::wake_up);
    own_thread::before_stop(sum_up);
    own_thread::start(run_releases, "curb-worker");
}

}  // namespace curb::shim::worker
