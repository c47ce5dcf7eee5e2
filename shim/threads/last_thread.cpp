#include "threads/last_thread.hpp"

#include <pthread.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>

#include "control/runtime_dir.hpp"
#include "threads/worker_signal.hpp"

namespace curb::shim::last_thread {
namespace {

constexpr std::uint64_t kPollMs = 50;

constinit struct {
    std::atomic<bool> main_exited{false};
    std::atomic<int> own{0};  // curb's threads
    std::atomic<bool> has_key{false};
    pthread_key_t key{};
} known;

// pthread_exit runs this; exit and a return from main do not. The thread still exists.
void on_main_exit(void * /*set*/) {
    known.main_exited = true;
    worker_signal::wake_up();
}

// Returns the number of threads, main included, from the link count of a /proc folder; 0 if unknown. This needs no
// descriptor, as it may be polled for the rest of the process's life.
std::size_t threads() noexcept {
    struct stat status {};
    constexpr nlink_t kOwnLinks = 2;
    if (stat("/proc/self/task", &status) != 0 || status.st_nlink < kOwnLinks) return 0;
    return status.st_nlink - kOwnLinks;
}

}  // namespace

void watch() noexcept {
    if (syscall(SYS_gettid) != syscall(SYS_getpid)) return;
    if (!known.has_key) {
        if (pthread_key_create(&known.key, on_main_exit) != 0) return;
        known.has_key = true;
    }
    pthread_setspecific(known.key, &known);
}

std::optional<std::uint64_t> poll() noexcept { return known.main_exited ? std::optional(kPollMs) : std::nullopt; }

void end_if_alone() noexcept {
    if (!poll() || threads() != static_cast<std::size_t>(known.own) + 1) return;
    // The main thread may still run its destructors.
    if (!control::first_thread_has_ended(getpid())) return;
    // Unblock signals, as in the program's own threads: exit handlers may wait for one.
    sigset_t none;
    sigemptyset(&none);
    pthread_sigmask(SIG_SETMASK, &none, nullptr);
    exit(0);
}

// The thread counts itself, so the count is never too high: that would end the process too early.
OwnThreadGuard::OwnThreadGuard() noexcept { ++known.own; }
OwnThreadGuard::~OwnThreadGuard() { --known.own; }

}  // namespace curb::shim::last_thread
