// Work for the thread curb-worker, which other threads queue. Thread-safe.
#pragma once

#include <string>
#include <vector>

namespace curb::shim::worker {

// Has the worker apply the parts of a new policy or cap that need driver calls (runtime::apply_with_driver).
void apply_with_driver(bool measure_if_stale) noexcept;

// Has the worker reconcile all devices in use and call `done`. `done` must be the same in all calls.
void measure(void (*done)() noexcept) noexcept;

// Has the worker call `set`, which sets the live caps that wait for an answer of NVML. `set` must be the same in all
// calls.
void set_caps(void (*set)() noexcept) noexcept;

// Has the worker log a line at level info, for threads that must not block on the log.
void log_later(std::string line) noexcept;

// For the worker.
struct Work {
    std::vector<std::string> lines;  // for the log
    bool apply_with_driver = false, measure_if_stale = false;
    // Null: not requested.
    void (*measured)() noexcept = nullptr;  // called once the devices are reconciled
    void (*set_caps)() noexcept = nullptr;
};
// Takes the queued work. While the gate is closed, leaves work that calls the driver.
Work take_work() noexcept;

}  // namespace curb::shim::worker
