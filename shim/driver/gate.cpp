#include "driver/gate.hpp"

#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <optional>

#include "abi/cuda_abi.h"
#include "base/keep_errno.hpp"
#include "base/waiting.hpp"
#include "driver/libcuda.hpp"
#include "host/clock.hpp"
#include "threads/own_thread.hpp"
#include "threads/worker_signal.hpp"

constinit std::atomic<std::uint32_t> curb_gate{curb::shim::gate::kNoDriver};

namespace curb::shim::gate {
namespace {

// Who has closed the gate, and what waits for it to open.
struct Gate {
    // A leaf. A call that waits only tries it, to open the gate.
    std::mutex mutex;
    For closed_for = For::client;
    std::uint64_t opened_ms = 0;
    struct Out {
        For by;
        policy::Bytes bytes;
        Back back;
    };
    std::optional<Out> out;  // the process is out of its GPUs

    // Written under the lock. Calls that wait read them without it: a signal handler may leave such a call by
    // siglongjmp.
    std::atomic<std::uint32_t> closings{0};  // calls of close(), renewals included
    std::atomic<std::uint64_t> lease_until_ms{0};
    // Written by calls that wait, and by exit().
    std::atomic<std::uint64_t> waiting_since_ms{0};
    FutexEvent called;
    std::atomic<bool> ending{false};
    std::atomic<std::uint64_t> counts_all_since_ms{0};

    [[nodiscard]] bool lease_is_over() const noexcept { return now_ms() >= lease_until_ms; }
    // The caller of these two holds the lock.
    void note_back(std::uint64_t resumed_ms) noexcept {
        if (!out) return;
        const std::uint64_t since = waiting_since_ms;
        out->back(out->bytes, out->by == For::nap && since != 0 ? now_ms() - since : resumed_ms);
        out.reset();
    }
    void open(std::uint64_t resumed_ms) noexcept {
        if (is_closed()) {
            opened_ms = now_ms();
            note_back(resumed_ms);
        }
        curb_gate &= ~kClosed;
        futex_wake(curb_gate);
        worker_signal::wake_up();  // its timers stood still while the gate was closed
    }
};
constinit Gate the_gate;

// How often a waiting call asks the driver whether the process is running again: another tool, or a `curb resume` that
// was killed before it opened the gate, may have brought it back.
constexpr std::uint64_t kPollMs = 100;

constinit thread_local bool ends_naps = false;

// True if the process is running, by the driver: then there is no reason to keep the gate closed.
bool is_running() noexcept {
    auto *get_state =
        reinterpret_cast<decltype(&cuCheckpointProcessGetState)>(libcuda::function("cuCheckpointProcessGetState"));
    CUprocessState state{};
    return get_state && get_state(getpid(), &state) == CUDA_SUCCESS && state == CU_PROCESS_STATE_RUNNING;
}

// Opens the gate if its lease is over and the driver says that the process is running, unless it was closed or its
// lease renewed while we asked. False if it is not so. Does not block.
bool open_expired() noexcept {
    const std::uint32_t seen = the_gate.closings;
    if (!is_closed() || !the_gate.lease_is_over() || !is_running()) return false;
    const std::unique_lock lock(the_gate.mutex, std::try_to_lock);
    if (lock && the_gate.closings == seen) the_gate.open(0);
    return true;
}

}  // namespace

bool wait() noexcept {
    const KeepErrno keep_errno;
    const bool is_own = own_thread::is_own() && !ends_naps;
    for (;;) {
        const std::uint32_t word = curb_gate;
        if (the_gate.ending) return false;
        if ((word & kClosed) == 0) return true;
        // Each time: the gate may have opened and closed again, for a nap that does not know of this call.
        if (!is_own) note_waiting();
        if (!open_expired()) futex_wait(curb_gate, word, kPollMs);
    }
}

Closing close(For whom, std::chrono::milliseconds lease) noexcept {
    {
        const std::scoped_lock lock(the_gate.mutex);
        const bool was_closed = is_closed();
        if (was_closed && the_gate.closed_for != whom && (whom == For::nap || !the_gate.lease_is_over()))
            return Closing::taken;
        the_gate.closed_for = whom;
        the_gate.lease_until_ms = now_ms() + static_cast<std::uint64_t>(lease.count());
        ++the_gate.closings;  // last: a call that sees it also sees the lease
        if (was_closed) return Closing::closed;
        the_gate.waiting_since_ms = 0;
        curb_gate |= kClosed;
    }
    if (readers::barrier()) return Closing::closed;
    open(whom);
    return Closing::uncounted;
}

void open_if_abandoned() noexcept { open_expired(); }

void open(For whom, std::uint64_t resumed_ms) noexcept {
    const std::scoped_lock lock(the_gate.mutex);
    if (the_gate.closed_for == whom || (whom == For::client && the_gate.lease_is_over())) the_gate.open(resumed_ms);
}

const void *call_under_way() noexcept { return readers::driver_call(); }

std::uint64_t waiting_since() noexcept { return the_gate.waiting_since_ms; }
std::optional<std::uint64_t> waited_ms() noexcept {
    const std::scoped_lock lock(the_gate.mutex);
    const std::uint64_t since = the_gate.waiting_since_ms, until = is_closed() ? now_ms() : the_gate.opened_ms;
    return since == 0 ? std::nullopt : std::optional(until - std::min(until, since));
}
void note_waiting() noexcept {
    std::uint64_t none = 0;
    the_gate.waiting_since_ms.compare_exchange_strong(none, now_ms());
    the_gate.called.post();
}
EndsNaps::EndsNaps() noexcept { ends_naps = true; }
EndsNaps::~EndsNaps() { ends_naps = false; }
void sleep_until_called(std::uint64_t milliseconds) noexcept { the_gate.called.wait(milliseconds); }

void note_out(For by, policy::Bytes bytes, Back back) noexcept {
    const std::scoped_lock lock(the_gate.mutex);
    the_gate.out = {by, bytes, back};
}
void note_kept_out() noexcept {
    const std::scoped_lock lock(the_gate.mutex);
    if (the_gate.out) the_gate.out->by = For::client;
}
void note_back() noexcept {
    const std::scoped_lock lock(the_gate.mutex);
    the_gate.note_back(0);
}
bool take_called() noexcept { return (curb_gate.fetch_or(kWatched) & kWatched) == 0; }
void note_call() noexcept {
    if ((curb_gate & kWatched) != 0 && !own_thread::is_own()) curb_gate &= ~kWatched;
}

void count_all(bool from_start) noexcept {
    if (counts_all()) return;
    curb_gate |= kCounts;
    the_gate.counts_all_since_ms = from_start ? 1 : now_ms();
}
std::uint64_t counts_all_since() noexcept { return the_gate.counts_all_since_ms; }

Passing begin_call(const void *function) noexcept {
    if (own_thread::is_own()) return Passing::uncounted;
    std::atomic<const void *> &call = readers::mine().driver_call;
    if (call.load(std::memory_order_relaxed)) return Passing::uncounted;
    for (;;) {
        call.store(function, std::memory_order_relaxed);
        std::atomic_signal_fence(std::memory_order_seq_cst);  // as in Crossing
        if (!is_closed()) return Passing::counted;
        end_call();
        if (!wait()) return Passing::ended;
    }
}
void end_call() noexcept { readers::mine().driver_call.store(nullptr, std::memory_order_release); }

void at_exit() noexcept {
    the_gate.ending = true;
    futex_wake(curb_gate);
}

bool has_ended() noexcept { return the_gate.ending; }

void in_fork_child() noexcept { curb_gate &= ~kClosed; }

}  // namespace curb::shim::gate
