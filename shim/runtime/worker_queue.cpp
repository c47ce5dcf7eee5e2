#include "runtime/worker_queue.hpp"

#include <mutex>
#include <utility>

#include "base/lifetime.hpp"
#include "driver/gate.hpp"
#include "threads/worker_signal.hpp"

namespace curb::shim::worker {
namespace {

// Never destroyed: threads may queue work until the process ends.
constinit std::mutex mutex;
Work &queued() noexcept { return leaked<Work>(); }

}  // namespace

Work take_work() noexcept {
    const std::scoped_lock lock(mutex);
    Work work = std::exchange(queued(), {});
    if (gate::is_closed()) {
        queued().apply_with_driver = std::exchange(work.apply_with_driver, false);
        queued().measure_if_stale = work.measure_if_stale;
    }
    return work;
}

void apply_with_driver(bool measure_if_stale) noexcept {
    {
        const std::scoped_lock lock(mutex);
        queued().apply_with_driver = true;
        queued().measure_if_stale |= measure_if_stale;
    }
    wake_up();
}

void measure(void (*done)() noexcept) noexcept {
    {
        const std::scoped_lock lock(mutex);
        queued().measured = done;
    }
    wake_up();
}

void log_later(std::string line) noexcept try {
    constexpr std::size_t kMost = 64;  // while a release occupies the worker
    {
        const std::scoped_lock lock(mutex);
        if (queued().lines.size() == kMost) queued().lines.erase(queued().lines.begin());
        queued().lines.push_back(std::move(line));
    }
    wake_up();
} catch (...) {
    // Out of host memory: no log line.
}

}  // namespace curb::shim::worker
