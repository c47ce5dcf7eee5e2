#include "threads/own_thread.hpp"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>

#include "base/waiting.hpp"
#include "host/log.hpp"
#include "threads/last_thread.hpp"

namespace curb::shim::own_thread {
namespace {

constinit std::atomic<bool> has_warned{false};

// Warns once; further failures have the same cause and are logged as info.
void log_no_thread(const char *name) noexcept try {
    log::write(
        has_warned.exchange(true, std::memory_order_relaxed) ? policy::LogLevel::info : policy::LogLevel::warning,
        std::string("no thread could be started for ") + name +
            ": caps hold, but this process may not serve releases, policy edits, traces and curb commands. Its "
            "limit of processes (ulimit -u) or of address space may be too low");
} catch (...) {
    // Out of host memory.
}

constinit thread_local bool is_this_own = false;

constinit std::atomic<int> awake{0};
constinit std::atomic<bool> ending{false};
constinit std::atomic<void (*)() noexcept> stops{nullptr};
constinit std::atomic<pid_t> runs_in{0};  // the process with the threads; a fork child inherits only their count

void begin() noexcept {
    awake.fetch_add(1, std::memory_order_seq_cst);
    if (!ending.load(std::memory_order_seq_cst)) return;
    awake.fetch_sub(1, std::memory_order_seq_cst);
    for (;;) pause();
}

void end() noexcept { awake.fetch_sub(1, std::memory_order_seq_cst); }

}  // namespace

bool is_own() noexcept { return is_this_own; }

void before_stop(void (*call)() noexcept) noexcept { stops.store(call, std::memory_order_release); }

void stop_at_exit() noexcept {
    if (runs_in.load(std::memory_order_relaxed) != getpid()) return;
    if (auto *call = stops.exchange(nullptr, std::memory_order_acq_rel)) call();
    ending.store(true, std::memory_order_seq_cst);
    poll_until([] { return awake.load(std::memory_order_seq_cst) <= 0; }, 200);
}

bool stopped() noexcept { return ending.load(std::memory_order_seq_cst); }

void in_fork_child() noexcept { runs_in.store(0, std::memory_order_relaxed); }

Awake::Awake() noexcept { begin(); }
Awake::~Awake() { end(); }
Asleep::Asleep() noexcept { end(); }
Asleep::~Asleep() { begin(); }

bool start(void (*body)(), const char *name) noexcept {
    if (runs_in.exchange(getpid(), std::memory_order_relaxed) == 0) atexit(stop_at_exit);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = false;
    constexpr int kTries = 5;  // a lack of memory or threads may be over in a millisecond
    for (int tries = 0; tries < kTries && !started; ++tries) {
        try {
            std::thread thread([body] {
                const last_thread::OwnThreadGuard guard;
                is_this_own = true;
                body();
            });
            pthread_setname_np(thread.native_handle(), name);
            thread.detach();
            started = true;
        } catch (...) {
            sleep_ms(1);
        }
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (!started) log_no_thread(name);
    return started;
}

}  // namespace curb::shim::own_thread
