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

constinit std::atomic<bool> main_exited{false};
constinit std::atomic<int> own_threads{0};
constinit std::atomic<bool> has_key{false};
constinit pthread_key_t key{};

// pthread_exit runs this; exit and a return from main do not. The thread still exists.
void on_main_exit(void * /*set*/) {
    main_exited.store(true, std::memory_order_seq_cst);
    worker::wake_up();
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
    if (!has_key.load(std::memory_order_acquire)) {
        if (pthread_key_create(&key, on_main_exit) != 0) return;
        has_key.store(true, std::memory_order_release);
    }
    pthread_setspecific(key, &key);
}

std::optional<std::uint64_t> poll() noexcept {
    return main_exited.load(std::memory_order_seq_cst) ? std::optional(kPollMs) : std::nullopt;
}

void end_if_alone() noexcept {
    const auto own = static_cast<std::size_t>(own_threads.load(std::memory_order_seq_cst));
    if (!poll() || threads() != own + 1) return;
    // The main thread may still run its destructors.
    if (!control::first_thread_has_ended(getpid())) return;
    // Unblock signals, as in the program's own threads: exit handlers may wait for one.
    sigset_t none;
    sigemptyset(&none);
    pthread_sigmask(SIG_SETMASK, &none, nullptr);
    exit(0);
}

// The thread counts itself, so the count is never too high: that would end the process too early.
OwnThreadGuard::OwnThreadGuard() noexcept { own_threads.fetch_add(1, std::memory_order_seq_cst); }
OwnThreadGuard::~OwnThreadGuard() { own_threads.fetch_sub(1, std::memory_order_seq_cst); }

}  // namespace curb::shim::last_thread
