#include "room.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "devices.hpp"
#include "keep_errno.hpp"
#include "leaked.hpp"

namespace curb::shim::room {
namespace {

constinit std::atomic<int> waiting{0};
constinit std::atomic<std::uint64_t> changes{0};
constinit std::mutex mutex;

// Leaked: threads may wait until the process is gone.
std::condition_variable &something_changed() noexcept { return leaked<std::condition_variable>(); }

}  // namespace

void changed() noexcept {
    if (waiting.load(std::memory_order_seq_cst) == 0) return;
    {
        // Under the lock, lest it fall between a sleeper's look and its sleep.
        const std::scoped_lock lock(mutex);
        changes.fetch_add(1, std::memory_order_relaxed);
    }
    something_changed().notify_all();
}

Wait::~Wait() {
    if (listening_) waiting.fetch_sub(1, std::memory_order_seq_cst);
}

void Wait::attempt() noexcept {
    if (listening_) seen_ = changes.load(std::memory_order_seq_cst);
}

bool Wait::left(policy::Duration most) const noexcept {
    return static_cast<std::uint64_t>(most.count()) > milliseconds();
}

void Wait::sleep(std::uint64_t milliseconds) noexcept {
    const KeepErrno keep_errno;
    if (!listening_) {
        began_ms_ = devices::now_ms();
        listening_ = true;
        waiting.fetch_add(1, std::memory_order_seq_cst);
        return;
    }
    // The attempt itself may have changed something (what it released). At least a moment, lest that become a loop that
    // keeps a core busy.
    constexpr std::uint64_t kMoment = 1;
    const std::chrono::milliseconds most(std::max(milliseconds, kMoment));
    std::unique_lock lock(mutex);
    something_changed().wait_for(lock, most, [&] { return changes.load(std::memory_order_relaxed) != seen_; });
}

std::uint64_t Wait::milliseconds() const noexcept { return listening_ ? devices::now_ms() - began_ms_ : 0; }

}  // namespace curb::shim::room
