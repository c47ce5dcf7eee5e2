#include "gate.hpp"

#include <unistd.h>

#include "clock.hpp"
#include "cuda_abi.h"
#include "keep_errno.hpp"
#include "libcuda.hpp"
#include "own_thread.hpp"
#include "waiting.hpp"

constinit std::atomic<std::uint32_t> curb_gate{curb::shim::gate::kNoDriver};

namespace curb::shim::gate {
namespace {

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

}  // namespace

bool wait() noexcept {
    const KeepErrno keep_errno;
    const bool is_own = own_thread::is_own();
    for (;;) {
        const std::uint32_t word = curb_gate.load(std::memory_order_acquire);
        if (ending.load(std::memory_order_acquire)) return false;
        if ((word & kClosed) == 0) return true;
        // Each time: the gate may have opened and closed again, for a nap that does not know of this call.
        if (auto *call = waits.load(std::memory_order_acquire); call && !is_own) call();
        if (now_ms() >= lease_until_ms.load(std::memory_order_relaxed) && is_running())
            open();
        else
            futex_wait(curb_gate, word, kPollMs);
    }
}

bool close(std::chrono::milliseconds lease) noexcept {
    lease_until_ms.store(now_ms() + static_cast<std::uint64_t>(lease.count()), std::memory_order_relaxed);
    if (is_closed()) return true;
    curb_gate.fetch_or(kClosed, std::memory_order_seq_cst);
    if (readers::barrier()) return true;
    open();
    return false;
}

void open() noexcept {
    if (auto *call = opens.load(std::memory_order_acquire); call && is_closed()) call();
    curb_gate.fetch_and(~kClosed, std::memory_order_seq_cst);
    futex_wake(curb_gate);
}

const void *call_under_way() noexcept { return readers::driver_call(); }

void on_wait(void (*call)() noexcept) noexcept { waits.store(call, std::memory_order_release); }
void on_open(void (*call)() noexcept) noexcept { opens.store(call, std::memory_order_release); }

void watch() noexcept { curb_gate.fetch_or(kWatched, std::memory_order_acq_rel); }
void note_call() noexcept { curb_gate.fetch_and(~kWatched, std::memory_order_acq_rel); }

void at_exit() noexcept {
    ending.store(true, std::memory_order_release);
    futex_wake(curb_gate);
}

void in_fork_child() noexcept { curb_gate.fetch_and(~kClosed, std::memory_order_relaxed); }

}  // namespace curb::shim::gate
