#include "worker_signal.hpp"

#include <atomic>

#include "futex_event.hpp"

namespace curb::shim::worker {
namespace {

constinit FutexEvent woken;
constinit std::atomic<bool> signalled{false};

}  // namespace

void wake() noexcept {
    signalled.store(true, std::memory_order_seq_cst);
    woken.post();
}

void wake_up() noexcept { woken.post(); }

void sleep(std::uint64_t milliseconds) noexcept { woken.wait(milliseconds); }

bool signal_came() noexcept { return signalled.load(std::memory_order_seq_cst); }

bool signal_served() noexcept { return signalled.exchange(false, std::memory_order_seq_cst); }

}  // namespace curb::shim::worker
