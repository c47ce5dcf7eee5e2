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
#include "host/process_state.hpp"
#include "threads/last_thread.hpp"

namespace curb::shim::own_thread {
namespace {

constinit struct {
    process::Home home;
    std::atomic<bool> has_warned{false};  // that a thread could not be started
    std::atomic<void (*)() noexcept> before_stop{nullptr};
    // Without a lock: a signal handler may call exit() while this thread is in it.
    std::atomic<int> awake{0};        // threads that exit() waits for
    std::atomic<bool> ending{false};  // exit() has begun
} threads;

// Warns once; further failures have the same cause and are logged as info.
void log_no_thread(const char *name) noexcept try {
    log::write(threads.has_warned.exchange(true) ? policy::LogLevel::info : policy::LogLevel::warning,
               std::string("no thread could be started for ") + name +
                   ": caps hold, but this process may not serve releases, policy edits, traces and curb commands. Its "
                   "limit of processes (ulimit -u) or of address space may be too low");
} catch (...) {
    // Out of host memory.
}

constinit thread_local bool is_this_own = false, outlives_stop = false;

void begin() noexcept {
    ++threads.awake;
    if (!threads.ending || outlives_stop) return;
    --threads.awake;
    for (;;) pause();
}

void end() noexcept { --threads.awake; }

}  // namespace

bool is_own() noexcept { return is_this_own; }

void before_stop(void (*call)() noexcept) noexcept { threads.before_stop = call; }

void stop_at_exit() noexcept {
    if (!threads.home.is_here()) return;
    if (auto *call = threads.before_stop.exchange(nullptr)) call();
    threads.ending = true;
    poll_until([] { return threads.awake <= 0; }, 200);
}

bool stopped() noexcept { return threads.ending; }
void outlive_stop() noexcept { outlives_stop = true; }

Awake::Awake() noexcept { begin(); }
Awake::~Awake() { end(); }
Asleep::Asleep() noexcept { end(); }
Asleep::~Asleep() { begin(); }

bool start(void (*body)(), const char *name) noexcept {
    if (threads.home.set()) atexit(stop_at_exit);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = false;
    constexpr int kTries = 5;  // a lack of memory or threads may be over in a millisecond
    for (int tries = 0; tries < kTries && !started; ++tries) {
        try {
            std::thread thread([body, outlives = outlives_stop] {
                const last_thread::OwnThreadGuard guard;
                is_this_own = true;
                outlives_stop = outlives;
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
