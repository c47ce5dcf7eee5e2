// on_signal runs as a signal handler: it does not allocate, keeps errno, and takes only one lock, which every thread
// holds with all signals blocked. The program's handler may leave it by siglongjmp, so it holds nothing meanwhile.

#include "threads/signals.hpp"

#include <pthread.h>
#include <unistd.h>

#include <atomic>

#include "base/waiting.hpp"
#include "host/process_state.hpp"
#include "host/real_libc.hpp"
#include "threads/worker_signal.hpp"

namespace curb::shim::signals {
namespace {

constexpr int kSignals = 65;  // 1 to 64

// What the handler reads is atomic; the rest is guarded by the ChangeLock.
struct State {
    std::atomic<int> taken{0};  // the release signal; 0: none
    process::Home home;         // where curb's handler was installed
    // One per signal: a handler that runs late, after the policy named another signal, still finds its action.
    std::array<ProgramAction, kSignals> program{};
    // One bit per signal: glibc's signal() leaves out SA_RESTART.
    std::atomic<std::uint64_t> interrupting{0};
    // One bit per signal: the program replaced curb's handler by a system call. Installing ours again could make the
    // two handlers call each other for ever.
    std::uint64_t left_alone = 0;
    // The program has set an action. The worker handles that, because we may be in a signal handler and cannot log.
    std::atomic<bool> has_set{false};
    std::atomic<std::uint32_t> changing{0};  // the ChangeLock. 0: unlocked, 1: locked, 2: locked and threads wait
};
constinit State state;

ProgramAction &program(int signal) noexcept { return state.program[static_cast<std::size_t>(signal)]; }

void notify_worker() noexcept {
    state.has_set = true;
    worker_signal::wake_up();
}

constexpr std::uint64_t bit(int signal) noexcept { return std::uint64_t{1} << (signal - 1); }

// A lock for changing the program's action and the kernel's together. All signals are blocked meanwhile, so a handler
// never waits for the thread it interrupted. Waiters sleep on a futex: a real-time thread that yields would keep a
// thread of lower priority from running.
class ChangeLock : NoCopy {
  public:
    ChangeLock() noexcept {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before_);
        std::uint32_t unlocked = 0;
        if (state.changing.compare_exchange_strong(unlocked, 1)) return;
        while (state.changing.exchange(2) != 0) futex_wait(state.changing, 2, std::nullopt);
    }
    ~ChangeLock() {
        if (state.changing.exchange(0) == 2) futex_wake(state.changing, 1);
        pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    }

  private:
    sigset_t before_;
};

bool is_taken(int signal) noexcept { return signal != 0 && signal == state.taken && state.home.is_here(); }

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
    Action action = program(signal).read();
    if (!has_handler(action) || !(action.sa_flags & SA_RESETHAND)) return action;
    Action reset = action;
    reset.sa_handler = SIG_DFL;
    if (!our_process) {
        real::sigaction()(signal, &reset, nullptr);
        return action;
    }
    const ChangeLock lock;
    action = reset = program(signal).read();
    if (!has_handler(action) || !(action.sa_flags & SA_RESETHAND)) return action;
    reset.sa_handler = SIG_DFL;
    program(signal).write(reset);
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
    const bool our_process = state.home.is_here();
    if (our_process && signal == state.taken) worker_signal::wake();
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
    program(signal).write(own);
    const Action before = install(signal, own);
    if (is_ours(before) || before.sa_handler == own.sa_handler) return;
    program(signal).write(before);
    install(signal, before);
}

void take(int signal) noexcept {
    if (state.left_alone & bit(signal)) return;
    Action own{};
    if (real::sigaction()(signal, nullptr, &own) != 0) return;
    state.home.set();
    // This order matches after_libc_set(): if a thread's libc call does not see `taken` yet, we find its action in the
    // kernel.
    program(signal).write(own);
    state.taken = signal;
    install_before(signal, own);
}

void restore(int signal) noexcept {
    const Action own = program(signal).read(), current = in_kernel(signal);
    if (is_ours(current) || current.sa_handler == own.sa_handler) {
        // glibc's signal() uses a flag that only siginterrupt() sets. That also changes the action, so set it first.
        real::siginterrupt()(signal, interrupting(signal));
        real::sigaction()(signal, &own, nullptr);
    } else {
        state.left_alone |= bit(signal);
    }
    state.taken = 0;
}

SignalState state_under_lock(int signal) noexcept {
    if (signal == 0) return SignalState::none;
    if (state.left_alone & bit(signal)) return SignalState::replaced;
    if (state.taken != signal) return SignalState::refused;
    const Action current = in_kernel(signal);
    if (is_ours(current)) return SignalState::in_force;
    const bool ignores = program(signal).read().sa_handler == SIG_IGN;
    return ignores && current.sa_handler == SIG_IGN ? SignalState::ignored : SignalState::replaced;
}

}  // namespace

SignalState use(int signal) noexcept {
    const ChangeLock lock;
    const int before = state.taken;
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

bool program_has_set() noexcept { return state.has_set && state.has_set.exchange(false); }

void restore_program_action() noexcept {
    // The thread that held the lock is not in this process; nothing read here can be half written.
    state.changing = 0;
    const ChangeLock lock;
    if (const int signal = state.taken) restore(signal);
}

bool set(int signal, const Action &wanted, Action &before) noexcept {
    if (!is_taken(signal)) return false;
    const ChangeLock lock;
    if (!is_taken(signal)) return false;
    ProgramAction &own = program(signal);
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
    ProgramAction &own = program(signal);
    Action action = own.read();
    const auto flags = static_cast<unsigned>(action.sa_flags);
    action.sa_flags = static_cast<int>(interrupting ? flags & ~static_cast<unsigned>(SA_RESTART) : flags | SA_RESTART);
    own.write(action);
    install(signal, action);
    return true;
}

void note_interrupting(int signal, bool interrupting) noexcept {
    if (interrupting)
        state.interrupting |= bit(signal);
    else
        state.interrupting &= ~bit(signal);
}

bool interrupting(int signal) noexcept { return state.interrupting & bit(signal); }

void after_libc_set(int signal) noexcept {
    if (!is_taken(signal)) return;
    const ChangeLock lock;
    if (!is_taken(signal)) return;
    const Action current = in_kernel(signal);
    if (!is_ours(current)) install_before(signal, current);
    notify_worker();
}

void hide(int signal, Action &action) noexcept {
    if (is_ours(action)) action = program(signal).read();
}

}  // namespace curb::shim::signals
