#include "runtime/worker_queue.hpp"

#include <utility>

#include "base/guarded.hpp"
#include "driver/gate.hpp"
#include "threads/worker_signal.hpp"

namespace curb::shim::worker {
namespace {

// Changes the queue by `change` and wakes the worker.
template <class Change>
void queue(Change change) {
    leaked<Guarded<Work>>().locked(change);
    worker_signal::wake_up();
}

}  // namespace

Work take_work() noexcept {
    return leaked<Guarded<Work>>().locked([](Work &queued) {
        Work work = std::exchange(queued, {});
        if (gate::is_closed()) {
            queued.apply_with_driver = std::exchange(work.apply_with_driver, false);
            queued.measure_if_stale = work.measure_if_stale;
        }
        return work;
    });
}

void apply_with_driver(bool measure_if_stale) noexcept {
    queue([=](Work &queued) {
        queued.apply_with_driver = true;
        queued.measure_if_stale |= measure_if_stale;
    });
}

void measure(void (*done)() noexcept) noexcept {
    queue([=](Work &queued) { queued.measured = done; });
}

void set_caps(void (*set)() noexcept) noexcept {
    queue([=](Work &queued) { queued.set_caps = set; });
}

void log_later(std::string line) noexcept try {
    constexpr std::size_t kMost = 64;  // while a release occupies the worker
    queue([&](Work &queued) {
        if (queued.lines.size() == kMost) queued.lines.erase(queued.lines.begin());
        queued.lines.push_back(std::move(line));
    });
} catch (...) {
    // Out of host memory: no log line.
}

}  // namespace curb::shim::worker
