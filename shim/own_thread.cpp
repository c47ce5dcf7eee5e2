#include "own_thread.hpp"

#include <pthread.h>

#include <atomic>
#include <csignal>
#include <string>
#include <thread>

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

}  // namespace

bool start(void (*body)(), const char *name) noexcept {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = true;
    try {
        std::thread thread(body);
        pthread_setname_np(thread.native_handle(), name);
        thread.detach();
    } catch (...) {
        started = false;
        say_that_none_is_left(name);
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return started;
}

}  // namespace curb::shim::own_thread
