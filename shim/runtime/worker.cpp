#include "worker.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cache.hpp"
#include "caller_match.hpp"
#include "devices.hpp"
#include "last_thread.hpp"
#include "lifetime.hpp"
#include "log.hpp"
#include "own_thread.hpp"
#include "periodic.hpp"
#include "plan.hpp"
#include "policy/names.hpp"
#include "process.hpp"
#include "reconcile.hpp"
#include "waiting.hpp"
#include "worker_signal.hpp"

namespace curb::shim::worker {
namespace {

// Work queued by other threads. Never destroyed: they may queue until the process ends.
struct Asked {
    std::mutex mutex;
    std::vector<std::string> lines;  // for the log
    bool apply_with_driver = false, measure_if_stale = false;
    void (*measured)() noexcept = nullptr;  // called once the devices are reconciled; null: not requested
};
Asked &asked() noexcept { return leaked<Asked>(); }

// Adds the newly requested releases; any number of signals is one request. Throws std::bad_alloc before it takes any.
void take_requests(std::vector<release::Request> &out) {
    if (signal_came()) {
        release::Request request{policy::signal_name(*process::snapshot()->policy.release.signal)};
        out.reserve(out.size() + 1);
        if (signal_served()) out.push_back(std::move(request));
    }
    release::take_queued(out);
}

// Sleeps until the worker is woken, or for this long.
void sleep_for(std::optional<std::uint64_t> milliseconds) noexcept {
    constexpr std::uint64_t kLongest = 86'400'000;
    sleep(std::min(milliseconds.value_or(kLongest), kLongest));
}

// Runs the work that other threads have queued. False if there was none.
bool do_what_is_due() {
    std::vector<std::string> lines;
    bool apply_with_driver = false, measure_if_stale = false;
    void (*measured)() noexcept = nullptr;
    {
        const std::scoped_lock lock(asked().mutex);
        lines.swap(asked().lines);
        apply_with_driver = std::exchange(asked().apply_with_driver, false);
        measure_if_stale = std::exchange(asked().measure_if_stale, false);
        measured = std::exchange(asked().measured, nullptr);
    }
    for (const std::string &line : lines) log::write(policy::LogLevel::info, line);
    if (apply_with_driver) process::apply_with_driver(measure_if_stale);
    for (int ordinal = 0; ordinal < devices::count(); ++ordinal) {
        Device &device = devices::at(ordinal);
        const bool soon = device.measure_soon.exchange(false, std::memory_order_seq_cst);
        if ((!measured && !soon) || !devices::in_use(device)) continue;
        reconcile(device);
    }
    if (measured) measured();
    return apply_with_driver || measured || !lines.empty();
}

// Runs the queued work, or sleeps until there is some. False if the process is ending.
bool run_once(std::vector<release::Request> &waiting) {
    if (!begin_work()) return false;
    take_requests(waiting);
    if (!waiting.empty()) {
        release::run(waiting, take_requests);
        return true;
    }
    if (do_what_is_due()) return true;
    const auto next = periodic::run();
    end_work();
    last_thread::end_if_alone();
    sleep_for(next);
    return true;
}

void run_releases() {
    caller_match::inspect_libraries();  // growth steps need it before the first release
    std::vector<release::Request> waiting;
    for (bool goes_on = true; goes_on;) {
        try {
            goes_on = run_once(waiting);
        } catch (...) {
            end_work();
            sleep_ms(50);  // out of host memory: try again later
        }
    }
}

}  // namespace

void start() noexcept {
    set_process(getpid());
    atexit(stop_at_exit);
    cache::on_first_kept(wake_up);
    own_thread::start(run_releases, "curb-worker");
}

void in_fork_child() noexcept { set_process(0); }

void apply_with_driver(bool measure_if_stale) noexcept {
    {
        const std::scoped_lock lock(asked().mutex);
        asked().apply_with_driver = true;
        asked().measure_if_stale |= measure_if_stale;
    }
    wake_up();
}

void measure(void (*done)() noexcept) noexcept {
    {
        const std::scoped_lock lock(asked().mutex);
        asked().measured = done;
    }
    wake_up();
}

void log_later(std::string line) noexcept try {
    constexpr std::size_t kMost = 64;  // while a release occupies the worker
    {
        const std::scoped_lock lock(asked().mutex);
        if (asked().lines.size() == kMost) asked().lines.erase(asked().lines.begin());
        asked().lines.push_back(std::move(line));
    }
    wake_up();
} catch (...) {
    // Out of host memory: no log line.
}

}  // namespace curb::shim::worker
