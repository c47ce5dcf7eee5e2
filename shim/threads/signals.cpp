// on_signal runs as a signal handler: it does not allocate, keeps errno, and takes only one lock, which every thread
// holds with all signals blocked. The program's handler may leave it by siglongjmp, so it holds nothing meanwhile.

#include "threads/signals.hpp"

#include <pthread.h>
#include <unistd.h>

#include <atomic>

#include "base/waiting.hpp"
#include "host/real_libc.hpp"
#include "threads/worker_signal.hpp"

namespace curb::shim::signals {
namespace {

constexpr int kSignals = 65;  // 1 to 64

constinit std::atomic<int> taken{0};
constinit std::atomic<pid_t> taken_by{0};
// One per signal: a handler that runs late, after the policy named another signal, still finds its action.
constinit std::array<ProgramAction, kSignals> program{};
// One bit per signal. interrupting_signals: glibc's signal() leaves out SA_RESTART. left_alone: the program replaced
// curb's handler by a system call. Installing ours again could make the two handlers call each other for ever.
constinit std::atomic<std::uint64_t> interrupting_signals{0}, left_alone{0};

// The program has set an action. The worker handles that, because we may be in a signal handler and cannot log.
constinit std::atomic<bool> has_set{false};
void notify_worker() noexcept {
    has_set.store(true, std::memory_order_relaxed);
    worker::wake_up();
}

constexpr std::uint64_t bit(int signal) noexcept { return std::uint64_t{1} << (signal - 1); }

// A lock for changing the program's action and the kernel's together. All signals are blocked meanwhile, so a handler
// never waits for the thread it interrupted. Waiters sleep on a futex: a real-time thread that yields would keep a
// thread of lower priority from running.
constinit std::atomic<std::uint32_t> changing{0};  // 0: unlocked, 1: locked, 2: locked and threads wait
class ChangeLock : NoCopy {
  public:
    ChangeLock() noexcept {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before_);
        std::uint32_t unlocked = 0;
        if (changing.compare_exchange_strong(unlocked, 1, std::memory_order_acquire)) return;
        while (changing.exchange(2, std::memory_order_acquire) != 0) futex_wait(changing, 2, std::nullopt);
    }
    ~ChangeLock() {
        if (changing.exchange(0, std::memory_order_release) == 2) futex_wake(changing, 1);
        pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    }

  private:
    sigset_t before_;
};

// Also false in children of vfork, _Fork and clone, which run no fork handlers.
bool is_our_process() noexcept { return getpid() == taken_by.load(std::memory_order_relaxed); }

bool is_taken(int signal) noexcept {
    return signal != 0 && signal == taken.load(std::memory_order_seq_cst) && is_our_process();
}

void on_signal(int signal, siginfo_t *info, void *context);

bool is_ours(const Action &action) noexcept { return action.sa_sigaction == on_signal; }

Action in_kernel(int signal) noexcept {
    Action action{};
    real::sigaction()(signal, nullptr, &action);
    return action;
}

// Installs curb's handler with the mask and flags of the program's handler, so that the latter runs as without curb. If
// the program has none, system calls restart: without a handler nothing would interrupt them. If the program ignores
// the signal, it stays ignored: exec keeps that but resets a handler to the default action, and a program it starts
// would die of the signal. Returns the kernel's former action.
Action install(int signal, const Action &own) noexcept {
    Action action{}, before{};
    if (own.sa_handler == SIG_IGN) {
        action = own;
    } else {
        action.sa_sigaction = on_signal;
        if (has_handler(own)) {
            action.sa_mask = own.sa_mask;
            action.sa_flags = static_cast<int>(static_cast<unsigned>(own.sa_flags) & ~SA_RESETHAND);
        } else {
            action.sa_flags = SA_RESTART | SA_ONSTACK;
        }
        action.sa_flags |= SA_SIGINFO;
    }
    real::sigaction()(signal, &action, &before);
    return before;
}

// Returns the program's action for this delivery. An action with SA_RESETHAND runs once, as in the kernel, even if two
// threads get the signal at the same time.
Action action_to_run(int signal, bool our_process) noexcept {
    Action action = program[static_cast<std::size_t>(signal)].read();
    if (!has_handler(action) || !(action.sa_flags & SA_RESETHAND)) return action;
    Action reset = action;
    reset.sa_handler = SIG_DFL;
    if (!our_process) {
        real::sigaction()(signal, &reset, nullptr);
        return action;
    }
    const ChangeLock lock;
    action = reset = program[static_cast<std::size_t>(signal)].read();
    if (!has_handler(action) || !(action.sa_flags & SA_RESETHAND)) return action;
    reset.sa_handler = SIG_DFL;
    program[static_cast<std::size_t>(signal)].write(reset);
    if (is_taken(signal)) install(signal, reset);
    return action;
}

// For a child that still has curb's handler: runs the signal's default action.
void default_action(int signal) noexcept {
    const Action action{};
    real::sigaction()(signal, &action, nullptr);
    kill(getpid(), signal);
}

void on_signal(int signal, siginfo_t *info, void *context) {
    const int saved_errno = errno;
    const bool our_process = is_our_process();
    if (our_process && signal == taken.load(std::memory_order_seq_cst)) worker::wake();
    const Action action = action_to_run(signal, our_process);
    if (!our_process && action.sa_handler == SIG_DFL) default_action(signal);
    errno = saved_errno;
    if (!has_handler(action)) return;
    if (action.sa_flags & SA_SIGINFO)
        action.sa_sigaction(signal, info, context);
    else
        action.sa_handler(signal);
}

// The rest runs under the ChangeLock.

// Stores the program's action and installs curb's handler. If the program sets another action meanwhile, install()
// returns it, and we store that one.
void install_before(int signal, const Action &own) noexcept {
    program[static_cast<std::size_t>(signal)].write(own);
    const Action before = install(signal, own);
    if (is_ours(before) || before.sa_handler == own.sa_handler) return;
    program[static_cast<std::size_t>(signal)].write(before);
    install(signal, before);
}

void take(int signal) noexcept {
    if (left_alone.load(std::memory_order_relaxed) & bit(signal)) return;
    Action own{};
    if (real::sigaction()(signal, nullptr, &own) != 0) return;
    taken_by.store(getpid(), std::memory_order_relaxed);
    // This order matches after_libc_set(): if a thread's libc call does not see `taken` yet, we find its action in the
    // kernel.
    program[static_cast<std::size_t>(signal)].write(own);
    taken.store(signal, std::memory_order_seq_cst);
    install_before(signal, own);
}

void restore(int signal) noexcept {
    const Action own = program[static_cast<std::size_t>(signal)].read(), current = in_kernel(signal);
    if (is_ours(current) || current.sa_handler == own.sa_handler) {
        // glibc's signal() uses a flag that only siginterrupt() sets. That also changes the action, so set it first.
        real::siginterrupt()(signal, interrupting(signal));
        real::sigaction()(signal, &own, nullptr);
    } else {
        left_alone.fetch_or(bit(signal), std::memory_order_relaxed);
    }
    taken.store(0, std::memory_order_seq_cst);
}

SignalState state_under_lock(int signal) noexcept {
    if (signal == 0) return SignalState::none;
    if (left_alone.load(std::memory_order_relaxed) & bit(signal)) return SignalState::replaced;
    if (taken.load(std::memory_order_relaxed) != signal) return SignalState::refused;
    const Action current = in_kernel(signal);
    if (is_ours(current)) return SignalState::in_force;
    const bool ignores = program[static_cast<std::size_t>(signal)].read().sa_handler == SIG_IGN;
    return ignores && current.sa_handler == SIG_IGN ? SignalState::ignored : SignalState::replaced;
}

}  // namespace

SignalState use(int signal) noexcept {
    const ChangeLock lock;
    const int before = taken.load(std::memory_order_relaxed);
    if (signal != before) {
        if (before != 0) restore(before);
        if (signal != 0) take(signal);
    }
    return state_under_lock(signal);
}

SignalState state_of(int signal) noexcept {
    const ChangeLock lock;
    return state_under_lock(signal);
}

bool program_has_set() noexcept {
    return has_set.load(std::memory_order_relaxed) && has_set.exchange(false, std::memory_order_relaxed);
}

void restore_program_action() noexcept {
    // The thread that held the lock is not in this process; nothing read here can be half written.
    changing.store(0, std::memory_order_relaxed);
    const ChangeLock lock;
    if (const int signal = taken.load(std::memory_order_relaxed)) restore(signal);
}

bool set(int signal, const Action &wanted, Action &before) noexcept {
    if (!is_taken(signal)) return false;
    const ChangeLock lock;
    if (!is_taken(signal)) return false;
    ProgramAction &own = program[static_cast<std::size_t>(signal)];
    before = own.read();
    // The program may have read curb's handler by a system call and sets it again: keep the program's former action.
    const Action &action = is_ours(wanted) ? before : wanted;
    own.write(action);
    const Action current = install(signal, action);
    if (!is_ours(current)) before = current;  // ignored, or replaced by a system call
    notify_worker();
    return true;
}

bool set_interrupting(int signal, bool interrupting) noexcept {
    if (!is_taken(signal)) return false;
    const ChangeLock lock;
    if (!is_taken(signal)) return false;
    note_interrupting(signal, interrupting);
    ProgramAction &own = program[static_cast<std::size_t>(signal)];
    Action action = own.read();
    const auto flags = static_cast<unsigned>(action.sa_flags);
    action.sa_flags = static_cast<int>(interrupting ? flags & ~static_cast<unsigned>(SA_RESTART) : flags | SA_RESTART);
    own.write(action);
    install(signal, action);
    return true;
}

void note_interrupting(int signal, bool interrupting) noexcept {
    if (interrupting)
        interrupting_signals.fetch_or(bit(signal), std::memory_order_relaxed);
    else
        interrupting_signals.fetch_and(~bit(signal), std::memory_order_relaxed);
}

bool interrupting(int signal) noexcept { return interrupting_signals.load(std::memory_order_relaxed) & bit(signal); }

void after_libc_set(int signal) noexcept {
    if (!is_taken(signal)) return;
    const ChangeLock lock;
    if (!is_taken(signal)) return;
    const Action current = in_kernel(signal);
    if (!is_ours(current)) install_before(signal, current);
    notify_worker();
}

void hide(int signal, Action &action) noexcept {
    if (is_ours(action)) action = program[static_cast<std::size_t>(signal)].read();
}

}  // namespace curb::shim::signals
