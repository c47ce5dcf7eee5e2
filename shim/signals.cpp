// on_signal runs in a signal handler: no allocation, no locks, errno kept.

#include "signals.hpp"

#include <pthread.h>
#include <sched.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>

#include "real_libc.hpp"
#include "worker.hpp"

namespace curb::shim::signals {
namespace {

using Action = struct sigaction;

constinit std::atomic<int> taken{0};

// What the program believes to be in force for the signal. Read in the handler, so it is kept under a sequence lock;
// who writes blocks all signals meanwhile, so that a handler never waits for the thread it interrupted.
class ProgramAction {
  public:
    [[nodiscard]] Action read() const noexcept {
        for (;;) {
            const unsigned before = sequence_.load(std::memory_order_acquire);
            std::array<std::uint64_t, kWords> copy{};
            // acquire and, below, release: no word is seen on the wrong side of the sequence.
            for (std::size_t i = 0; i < kWords; ++i) copy[i] = words_[i].load(std::memory_order_acquire);
            if (before % 2 != 0 || before != sequence_.load(std::memory_order_relaxed)) continue;
            Action action{};
            std::memcpy(&action, copy.data(), sizeof action);
            return action;
        }
    }
    void write(const Action &action) noexcept {
        std::array<std::uint64_t, kWords> copy{};
        std::memcpy(copy.data(), &action, sizeof action);
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        unsigned even = sequence_.load(std::memory_order_relaxed) & ~1U;
        while (!sequence_.compare_exchange_weak(even, even + 1, std::memory_order_acquire)) {
            even &= ~1U;
            sched_yield();
        }
        for (std::size_t i = 0; i < kWords; ++i) words_[i].store(copy[i], std::memory_order_release);
        sequence_.store(even + 2, std::memory_order_release);
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }

  private:
    static constexpr std::size_t kWords = (sizeof(Action) + sizeof(std::uint64_t) - 1) / sizeof(std::uint64_t);

    std::atomic<unsigned> sequence_{0};
    std::array<std::atomic<std::uint64_t>, kWords> words_{};
};

constinit ProgramAction program;

bool has_handler(const Action &action) noexcept {
    return (action.sa_flags & SA_SIGINFO) || (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN);
}

void on_signal(int signal, siginfo_t *info, void *context) {
    const int saved_errno = errno;
    worker::wake();
    errno = saved_errno;
    Action action = program.read();
    if (!has_handler(action)) return;
    if (action.sa_flags & SA_RESETHAND) {
        Action reset{};
        reset.sa_handler = SIG_DFL;
        program.write(reset);
    }
    if (action.sa_flags & SA_SIGINFO)
        action.sa_sigaction(signal, info, context);
    else
        action.sa_handler(signal);
}

// Our handler under the mask and flags that the program's handler asked for, so that it runs as it would without us.
// Where the program has none, interrupted system calls restart: without a handler nothing would have interrupted them.
void install(int signal, const Action &behind) noexcept {
    Action action{};
    action.sa_sigaction = on_signal;
    if (has_handler(behind)) {
        action.sa_mask = behind.sa_mask;
        action.sa_flags = static_cast<int>(static_cast<unsigned>(behind.sa_flags) & ~SA_RESETHAND);
    } else {
        action.sa_flags = SA_RESTART | SA_ONSTACK;
    }
    action.sa_flags |= SA_SIGINFO;
    real::sigaction()(signal, &action, nullptr);
}

}  // namespace

void use(int signal) noexcept {
    const int before = taken.load(std::memory_order_acquire);
    if (signal == before) return;
    if (before != 0) {
        taken.store(0, std::memory_order_release);
        const Action action = program.read();
        real::sigaction()(before, &action, nullptr);
    }
    if (signal == 0) return;
    Action own{};
    if (real::sigaction()(signal, nullptr, &own) != 0) return;
    program.write(own);
    taken.store(signal, std::memory_order_release);
    install(signal, own);
}

void restore_program_action() noexcept {
    const int signal = taken.exchange(0, std::memory_order_acq_rel);
    if (signal == 0) return;
    const Action action = program.read();
    real::sigaction()(signal, &action, nullptr);
}

namespace {

// The program's sigaction for our signal: its action is kept and told back, ours stays in the kernel.
int replace(int signal, const Action *action, Action *old) noexcept {
    if (old) *old = program.read();
    if (action) {
        program.write(*action);
        install(signal, *action);
    }
    return 0;
}

bool is_taken(int signal) noexcept { return signal != 0 && signal == taken.load(std::memory_order_acquire); }

}  // namespace
}  // namespace curb::shim::signals

using namespace curb::shim;

extern "C" __attribute__((visibility("default"))) int sigaction(int signal, const struct sigaction *action,
                                                                struct sigaction *old) noexcept {
    if (!signals::is_taken(signal)) return real::sigaction()(signal, action, old);
    // `old` may be the same object as `action`.
    struct sigaction before {
    }, wanted{};
    if (action) wanted = *action;
    const int result = signals::replace(signal, action ? &wanted : nullptr, &before);
    if (old) *old = before;
    return result;
}

// BSD semantics, as glibc's signal has them: the handler stays, system calls restart.
extern "C" __attribute__((visibility("default"))) sighandler_t signal(int signal, sighandler_t handler) noexcept {
    if (!signals::is_taken(signal) || handler == SIG_ERR) return real::signal()(signal, handler);
    struct sigaction action {
    }, before{};
    action.sa_handler = handler;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    sigaddset(&action.sa_mask, signal);
    signals::replace(signal, &action, &before);
    return before.sa_handler;  // in glibc's struct the same field as sa_sigaction
}
