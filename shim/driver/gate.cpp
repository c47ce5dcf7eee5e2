#include "driver/gate.hpp"

#include <unistd.h>

#include <mutex>

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

// Held while the gate is closed or opened. So a call that opens it after the lease cannot open a later closing.
constinit std::mutex closing;
constinit For closed_for = For::client;            // guarded by `closing`
constinit std::atomic<std::uint32_t> closings{0};  // counts close() and renewals
constinit std::atomic<std::uint64_t> lease_until_ms{0};
constinit std::atomic<bool> ending{false};
constinit std::atomic<void (*)() noexcept> waits{nullptr}, opens{nullptr};

// How often a waiting call asks the driver whether the process is running again: another tool, or a `curb resume` that
// was killed before it opened the gate, may have brought it back.
constexpr std::uint64_t kPollMs = 100;

// True if the process is running, by the driver: then there is no reason to keep the gate closed.
bool is_running() noexcept {
    auto *get_state =
        reinterpret_cast<decltype(&cuCheckpointProcessGetState)>(libcuda::function("cuCheckpointProcessGetState"));
    CUprocessState state{};
    return get_state && get_state(getpid(), &state) == CUDA_SUCCESS && state == CU_PROCESS_STATE_RUNNING;
}

bool lease_is_over() noexcept { return now_ms() >= lease_until_ms.load(std::memory_order_acquire); }

// The caller holds the lock.
void open() noexcept {
    if (auto *call = opens.load(std::memory_order_acquire); call && is_closed()) call();
    curb_gate.fetch_and(~kClosed, std::memory_order_seq_cst);
    futex_wake(curb_gate);
    worker::wake_up();  // its timers stood still while the gate was closed
}

// Opens the gate, unless it was closed or its lease renewed after `seen` was read from `closings`. Does not block.
void open_after(std::uint32_t seen) noexcept {
    const std::unique_lock lock(closing, std::try_to_lock);
    if (lock && closings.load(std::memory_order_relaxed) == seen) open();
}

}  // namespace

bool wait() noexcept {
    const KeepErrno keep_errno;
    const bool is_own = own_thread::is_own();
    for (;;) {
        const std::uint32_t seen = closings.load(std::memory_order_acquire);
        const std::uint32_t word = curb_gate.load(std::memory_order_acquire);
        if (ending.load(std::memory_order_acquire)) return false;
        if ((word & kClosed) == 0) return true;
        // Each time: the gate may have opened and closed again, for a nap that does not know of this call.
        if (auto *call = waits.load(std::memory_order_acquire); call && !is_own) call();
        if (lease_is_over() && is_running())
            open_after(seen);
        else
            futex_wait(curb_gate, word, kPollMs);
    }
}

Closing close(For whom, std::chrono::milliseconds lease) noexcept {
    const std::scoped_lock lock(closing);
    const bool was_closed = is_closed();
    if (was_closed && closed_for != whom && (whom == For::nap || !lease_is_over())) return Closing::taken;
    closings.fetch_add(1, std::memory_order_seq_cst);
    closed_for = whom;
    lease_until_ms.store(now_ms() + static_cast<std::uint64_t>(lease.count()), std::memory_order_release);
    if (was_closed) return Closing::closed;
    curb_gate.fetch_or(kClosed, std::memory_order_seq_cst);
    if (readers::barrier()) return Closing::closed;
    open();
    return Closing::uncounted;
}

void open_if_abandoned() noexcept {
    const std::uint32_t seen = closings.load(std::memory_order_acquire);
    if (is_closed() && lease_is_over() && is_running()) open_after(seen);
}

void open(For whom) noexcept {
    const std::scoped_lock lock(closing);
    if (closed_for == whom || (whom == For::client && lease_is_over())) open();
}

const void *call_under_way() noexcept { return readers::driver_call(); }

void on_wait(void (*call)() noexcept) noexcept { waits.store(call, std::memory_order_release); }
void on_open(void (*call)() noexcept) noexcept { opens.store(call, std::memory_order_release); }

bool take_called() noexcept { return (curb_gate.fetch_or(kWatched, std::memory_order_acq_rel) & kWatched) == 0; }
void note_call() noexcept {
    if (!own_thread::is_own()) curb_gate.fetch_and(~kWatched, std::memory_order_acq_rel);
}

void at_exit() noexcept {
    ending.store(true, std::memory_order_release);
    futex_wake(curb_gate);
}

void in_fork_child() noexcept { curb_gate.fetch_and(~kClosed, std::memory_order_relaxed); }

}  // namespace curb::shim::gate
