// on_signal runs in a signal handler: no allocation, no locks but one that is only held with all signals blocked, errno
// kept. It may be left by siglongjmp, so it holds nothing while the program's handler runs.

#include "signals.hpp"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

#include "keep_errno.hpp"
#include "real_libc.hpp"
#include "worker_signal.hpp"

namespace curb::shim::signals {
namespace {

constexpr int kSignals = 65;  // 1 to 64

constinit std::atomic<int> taken{0};
constinit std::atomic<pid_t> taken_by{0};
// By signal: a handler that runs late, after the policy has moved to another signal, still finds its own.
constinit std::array<ProgramAction, kSignals> program{};
// A bit for each signal. Interrupting: what glibc's signal() is to leave SA_RESTART out for. Left alone: what the
// program took past us; taken again, its handler and ours might call each other for ever.
constinit std::atomic<std::uint64_t> interrupting_signals{0}, left_alone{0};

// The program has set an action, which the worker looks at: this may be a signal handler, where nothing can be logged.
constinit std::atomic<bool> has_set{false};
void tell_worker() noexcept {
    has_set.store(true, std::memory_order_relaxed);
    worker::wake_up();
}

constexpr std::uint64_t bit(int signal) noexcept { return std::uint64_t{1} << (signal - 1); }

// A change of the program's action and of the kernel's, as one. All signals are blocked meanwhile, so no handler ever
// waits for the thread that it interrupted. A futex, because a yielding thread of real-time priority never lets a
// lesser one go on.
constinit std::atomic<int> changing{0};  // 0: nobody, 1: somebody, 2: and others wait
class Change {
  public:
    Change() noexcept {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before_);
        int nobody = 0;
        if (changing.compare_exchange_strong(nobody, 1, std::memory_order_acquire)) return;
        const KeepErrno keep_errno;
        while (changing.exchange(2, std::memory_order_acquire) != 0) syscall(SYS_futex, &changing, FUTEX_WAIT, 2, 0);
    }
    ~Change() {
        const KeepErrno keep_errno;
        if (changing.exchange(0, std::memory_order_release) == 2) syscall(SYS_futex, &changing, FUTEX_WAKE, 1);
        pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    }
    Change(const Change &) = delete;
    Change &operator=(const Change &) = delete;

  private:
    sigset_t before_;
};

// False in the children of vfork, _Fork and clone as well, for which no fork handler of ours has run.
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

// Our handler under the mask and flags that the program's handler asked for, so that it runs as it would without us.
// Where the program has none, interrupted system calls restart: without a handler nothing would have interrupted them.
// A signal that the program ignores stays ignored: exec keeps that, but turns a handler into the default action, and
// what the program starts would die of a signal that it was to ignore.
// Gives back what was in the kernel.
Action install(int signal, const Action &behind) noexcept {
    Action action{}, before{};
    if (behind.sa_handler == SIG_IGN) {
        action = behind;
    } else {
        action.sa_sigaction = on_signal;
        if (has_handler(behind)) {
            action.sa_mask = behind.sa_mask;
            action.sa_flags = static_cast<int>(static_cast<unsigned>(behind.sa_flags) & ~SA_RESETHAND);
        } else {
            action.sa_flags = SA_RESTART | SA_ONSTACK;
        }
        action.sa_flags |= SA_SIGINFO;
    }
    real::sigaction()(signal, &action, &before);
    return before;
}

// The action that this delivery runs. One with SA_RESETHAND is good for one delivery, as in the kernel: also when two
// threads get the signal at once.
Action due(int signal, bool our_process) noexcept {
    Action action = program[static_cast<std::size_t>(signal)].read();
    if (!has_handler(action) || !(action.sa_flags & SA_RESETHAND)) return action;
    Action reset = action;
    reset.sa_handler = SIG_DFL;
    if (!our_process) {
        real::sigaction()(signal, &reset, nullptr);
        return action;
    }
    const Change change;
    action = reset = program[static_cast<std::size_t>(signal)].read();
    if (!has_handler(action) || !(action.sa_flags & SA_RESETHAND)) return action;
    reset.sa_handler = SIG_DFL;
    program[static_cast<std::size_t>(signal)].write(reset);
    if (is_taken(signal)) install(signal, reset);
    return action;
}

// In a child that has not got rid of our handler: what happens there without us.
void default_action(int signal) noexcept {
    const Action action{};
    real::sigaction()(signal, &action, nullptr);
    kill(getpid(), signal);
}

void on_signal(int signal, siginfo_t *info, void *context) {
    const int saved_errno = errno;
    const bool our_process = is_our_process();
    if (our_process && signal == taken.load(std::memory_order_seq_cst)) worker::wake();
    const Action action = due(signal, our_process);
    if (!our_process && action.sa_handler == SIG_DFL) default_action(signal);
    errno = saved_errno;
    if (!has_handler(action)) return;
    if (action.sa_flags & SA_SIGINFO)
        action.sa_sigaction(signal, info, context);
    else
        action.sa_handler(signal);
}

// The rest runs within a Change.

// Puts our handler before an action that the program has set by itself. Another that it sets in the meantime is found
// in the kernel by our own setting.
void stand_before(int signal, const Action &own) noexcept {
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
    // The order is was_set()'s: whoever sets an action before it sees the signal taken is seen by us.
    program[static_cast<std::size_t>(signal)].write(own);
    taken.store(signal, std::memory_order_seq_cst);
    stand_before(signal, own);
}

void give_back(int signal) noexcept {
    const Action own = program[static_cast<std::size_t>(signal)].read(), there = in_kernel(signal);
    if (is_ours(there) || there.sa_handler == own.sa_handler) {
        // What signal() is to do from now on, which glibc keeps beside the kernel's action; it changes that too.
        real::siginterrupt()(signal, interrupting(signal));
        real::sigaction()(signal, &own, nullptr);
    } else {
        left_alone.fetch_or(bit(signal), std::memory_order_relaxed);
    }
    taken.store(0, std::memory_order_seq_cst);
}

Standing standing(int signal) noexcept {
    if (signal == 0) return Standing::none;
    if (left_alone.load(std::memory_order_relaxed) & bit(signal)) return Standing::replaced;
    if (taken.load(std::memory_order_relaxed) != signal) return Standing::refused;
    const Action there = in_kernel(signal);
    if (is_ours(there)) return Standing::in_force;
    const bool ignores = program[static_cast<std::size_t>(signal)].read().sa_handler == SIG_IGN;
    return ignores && there.sa_handler == SIG_IGN ? Standing::ignored : Standing::replaced;
}

}  // namespace

Standing use(int signal) noexcept {
    const Change change;
    const int before = taken.load(std::memory_order_relaxed);
    if (signal != before) {
        if (before != 0) give_back(before);
        if (signal != 0) take(signal);
    }
    return standing(signal);
}

Standing stands(int signal) noexcept {
    const Change change;
    return standing(signal);
}

bool program_has_set() noexcept {
    return has_set.load(std::memory_order_relaxed) && has_set.exchange(false, std::memory_order_relaxed);
}

void restore_program_action() noexcept {
    // Whoever held it is not in this process, and left nothing half done that is read here.
    changing.store(0, std::memory_order_relaxed);
    const Change change;
    if (const int signal = taken.load(std::memory_order_relaxed)) give_back(signal);
}

bool set(int signal, const Action &wanted, Action &before) noexcept {
    if (!is_taken(signal)) return false;
    const Change change;
    if (!is_taken(signal)) return false;
    ProgramAction &own = program[static_cast<std::size_t>(signal)];
    before = own.read();
    // Ours, which the program has seen past us: it is there already.
    const Action &behind = is_ours(wanted) ? before : wanted;
    own.write(behind);
    const Action there = install(signal, behind);
    if (!is_ours(there)) before = there;  // ignored, or set past us
    tell_worker();
    return true;
}

bool set_interrupting(int signal, bool interrupting) noexcept {
    if (!is_taken(signal)) return false;
    const Change change;
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

void was_set(int signal) noexcept {
    if (!is_taken(signal)) return;
    const Change change;
    if (!is_taken(signal)) return;
    const Action there = in_kernel(signal);
    if (!is_ours(there)) stand_before(signal, there);
    tell_worker();
}

void hide(int signal, Action &told) noexcept {
    if (is_ours(told)) told = program[static_cast<std::size_t>(signal)].read();
}

}  // namespace curb::shim::signals
