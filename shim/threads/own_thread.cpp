#include "own_thread.hpp"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <string>
#include <thread>

#include "last_thread.hpp"
#include "log.hpp"

namespace curb::shim::own_thread {
namespace {

constinit std::atomic<bool> said{false};

// Where one thread is too many the next is, too: once is enough.
void say_that_none_is_left(const char *name) noexcept try {
    log::write(said.exchange(true, std::memory_order_relaxed) ? policy::LogLevel::info : policy::LogLevel::warning,
               std::string("no thread could be started for ") + name +
                   ": caps hold, but releases, edits of the policy, traces and what the curb command asks may not be "
                   "served in this process. Its limit of processes (ulimit -u) or of address space may be too low");
} catch (...) {
    // Out of host memory, too.
}

constinit std::atomic<int> awake{0};
constinit std::atomic<bool> ending{false};
constinit std::atomic<pid_t> runs_in{0};  // a child that was forked has none of the threads, and their number

// Bounded: a thread may be waiting for a lock that the one that exits holds.
void let_them_rest() {
    if (runs_in.load(std::memory_order_relaxed) != getpid()) return;
    ending.store(true, std::memory_order_seq_cst);
    for (int looks = 0; looks < 200 && awake.load(std::memory_order_seq_cst) > 0; ++looks) {
        const timespec moment{0, 1'000'000};
        nanosleep(&moment, nullptr);
    }
}

void begin() noexcept {
    awake.fetch_add(1, std::memory_order_seq_cst);
    if (!ending.load(std::memory_order_seq_cst)) return;
    awake.fetch_sub(1, std::memory_order_seq_cst);
    for (;;) pause();
}

void end() noexcept { awake.fetch_sub(1, std::memory_order_seq_cst); }

}  // namespace

Awake::Awake() noexcept { begin(); }
Awake::~Awake() { end(); }
Asleep::Asleep() noexcept { end(); }
Asleep::~Asleep() { begin(); }

bool start(void (*body)(), const char *name) noexcept {
    if (runs_in.exchange(getpid(), std::memory_order_relaxed) == 0) atexit(let_them_rest);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = false;
    constexpr int kTries = 5;  // the system may lack memory, or the user threads, for a moment
    for (int tries = 0; tries < kTries && !started; ++tries) {
        try {
            std::thread thread([body] {
                const last_thread::Ours ours;
                body();
            });
            pthread_setname_np(thread.native_handle(), name);
            thread.detach();
            started = true;
        } catch (...) {
            const timespec moment{0, 1'000'000};
            nanosleep(&moment, nullptr);
        }
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (!started) say_that_none_is_left(name);
    return started;
}

}  // namespace curb::shim::own_thread
