#include "last_thread.hpp"

#include <pthread.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>

#include "control/runtime_dir.hpp"
#include "worker_signal.hpp"

namespace curb::shim::last_thread {
namespace {

constexpr std::uint64_t kBetweenLooksMs = 50;

constinit std::atomic<bool> left{false};
constinit std::atomic<int> ours{0};
constinit std::atomic<bool> has_key{false};
constinit pthread_key_t key{};

// Run by pthread_exit, and not by exit or a return from main. The thread is not gone yet.
void on_leaving(void * /*set*/) {
    left.store(true, std::memory_order_seq_cst);
    worker::wake_up();
}

// Its threads, the first one included, as /proc counts them in the links of a folder: without a descriptor, because
// this is asked for as long as the others go on.
std::size_t threads() noexcept {
    struct stat status {};
    constexpr nlink_t kOwnLinks = 2;
    if (stat("/proc/self/task", &status) != 0 || status.st_nlink < kOwnLinks) return 0;
    return status.st_nlink - kOwnLinks;
}

}  // namespace

void watch() noexcept {
    if (syscall(SYS_gettid) != getpid()) return;
    if (!has_key.load(std::memory_order_acquire)) {
        if (pthread_key_create(&key, on_leaving) != 0) return;
        has_key.store(true, std::memory_order_release);
    }
    pthread_setspecific(key, &key);
}

std::optional<std::uint64_t> poll() noexcept {
    if (!left.load(std::memory_order_seq_cst)) return std::nullopt;
    return kBetweenLooksMs;
}

void end_if_alone() noexcept {
    const auto own = static_cast<std::size_t>(ours.load(std::memory_order_seq_cst));
    if (!poll() || threads() != own + 1) return;
    // The first thread may still be at its destructors.
    if (!control::first_thread_has_ended(getpid())) return;
    // As it would be in a thread of the program's: what exit runs may wait for signals.
    sigset_t none;
    sigemptyset(&none);
    pthread_sigmask(SIG_SETMASK, &none, nullptr);
    exit(0);
}

// Counted only while the thread is there: one too few of ours delays the end, one too many would bring it too early.
Ours::Ours() noexcept { ours.fetch_add(1, std::memory_order_seq_cst); }
Ours::~Ours() { ours.fetch_sub(1, std::memory_order_seq_cst); }

}  // namespace curb::shim::last_thread
