#include "worker_signal.hpp"

#include <unistd.h>

#include <atomic>

#include "waiting.hpp"

namespace curb::shim::worker {
namespace {

constinit FutexEvent woken;
constinit std::atomic<bool> signalled{false};
constinit std::atomic<bool> exiting{false}, busy{false};
constinit std::atomic<pid_t> runs_in{0};

}  // namespace

void wake() noexcept {
    signalled.store(true, std::memory_order_seq_cst);
    woken.post();
}

void wake_up() noexcept { woken.post(); }

void sleep(std::uint64_t milliseconds) noexcept { woken.wait(milliseconds); }

bool signal_came() noexcept { return signalled.load(std::memory_order_seq_cst); }

bool signal_served() noexcept { return signalled.exchange(false, std::memory_order_seq_cst); }

void set_process(int pid) noexcept { runs_in.store(pid, std::memory_order_relaxed); }

bool begin_work() noexcept {
    busy.store(true, std::memory_order_seq_cst);
    return !exiting.load(std::memory_order_seq_cst);
}

void end_work() noexcept { busy.store(false, std::memory_order_seq_cst); }

void stop_at_exit() noexcept {
    if (runs_in.load(std::memory_order_relaxed) != getpid()) return;
    exiting.store(true, std::memory_order_seq_cst);
    poll_until([] { return !busy.load(std::memory_order_seq_cst); }, 200);
}

}  // namespace curb::shim::worker
