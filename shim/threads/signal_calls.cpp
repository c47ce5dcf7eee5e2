// Wraps every libc function that sets a signal's action. For the release signal, curb stores the program's action and
// keeps its own handler in front. For all other signals, and in children that share our memory, the call goes to libc.
// Each function needs its own wrapper, because glibc calls its internal sigaction from all of them.
//
// Async-signal-safe, as without curb.

#include "threads/signals.hpp"

#include "host/real_libc.hpp"

using namespace curb::shim;

namespace {

using Handler = real::Handler;

Action simple(Handler handler, int flags) noexcept {
    Action action{};
    action.sa_handler = handler;
    action.sa_flags = flags;
    sigemptyset(&action.sa_mask);
    return action;
}

// In glibc's struct, sa_handler and sa_sigaction are the same field.
Handler hidden(int signal, Handler handler) noexcept {
    Action action = simple(handler, 0);
    signals::hide(signal, action);
    return action.sa_handler;
}

// Sets the handler through curb, or else by calling `libc`. Returns the former handler.
template <class Libc>
Handler set_handler(int signal, const Action &wanted, Libc libc) noexcept {
    Action before{};
    if (wanted.sa_handler != SIG_ERR && signals::set(signal, wanted, before)) return before.sa_handler;
    const Handler former = libc();
    if (former == SIG_ERR) return former;
    signals::after_libc_set(signal);
    return hidden(signal, former);
}

#define EXPORT extern "C" __attribute__((visibility("default")))

// BSD semantics: the handler stays installed, and system calls restart unless siginterrupt() turned that off.
Handler set_bsd(int signal, Handler handler) noexcept {
    const bool known = signal > 0 && signal <= 64;
    Action action = simple(handler, known && signals::interrupting(signal) ? 0 : SA_RESTART);
    if (known) sigaddset(&action.sa_mask, signal);
    return set_handler(signal, action, [=] { return real::signal()(signal, handler); });
}

// System V semantics: the handler runs once, and the signal is not blocked while it runs.
Handler set_sysv(int signal, Handler handler) noexcept {
    const Action action = simple(handler, static_cast<int>(static_cast<unsigned>(SA_RESETHAND) | SA_NODEFER));
    return set_handler(signal, action, [=] { return real::sysv_signal()(signal, handler); });
}

int set_action(int signal, const Action *action, Action *old) noexcept {
    if (action) {
        Action before{};  // `old` and `action` may be the same object
        if (signals::set(signal, *action, before)) {
            if (old) *old = before;
            return 0;
        }
    }
    const int result = real::sigaction()(signal, action, old);
    if (result != 0) return result;
    if (action) signals::after_libc_set(signal);
    if (old) signals::hide(signal, *old);
    return result;
}

}  // namespace

EXPORT int sigaction(int signal, const struct sigaction *action, struct sigaction *old) noexcept {
    return set_action(signal, action, old);
}
EXPORT int __sigaction(int signal, const struct sigaction *action, struct sigaction *old) noexcept {
    return set_action(signal, action, old);
}

EXPORT sighandler_t signal(int signal, sighandler_t handler) noexcept { return set_bsd(signal, handler); }
EXPORT sighandler_t bsd_signal(int signal, sighandler_t handler) noexcept { return set_bsd(signal, handler); }
EXPORT sighandler_t ssignal(int signal, sighandler_t handler) noexcept { return set_bsd(signal, handler); }

// Programs compiled for strict X/Open call these for signal().
EXPORT sighandler_t sysv_signal(int signal, sighandler_t handler) noexcept { return set_sysv(signal, handler); }
EXPORT sighandler_t __sysv_signal(int signal, sighandler_t handler) noexcept { return set_sysv(signal, handler); }

// SIG_HOLD only blocks the signal, so libc does that. Otherwise sigset also unblocks the signal, and returns SIG_HOLD
// if it was blocked.
EXPORT sighandler_t sigset(int signal, sighandler_t handler) noexcept {
    Action before{};
    if (handler == SIG_HOLD || !signals::set(signal, simple(handler, 0), before)) {
        const Handler former = real::sigset()(signal, handler);
        if (former == SIG_ERR || former == SIG_HOLD) return former;
        if (handler != SIG_HOLD) signals::after_libc_set(signal);
        return hidden(signal, former);
    }
    sigset_t alone, mask;
    sigemptyset(&alone);
    sigaddset(&alone, signal);
    pthread_sigmask(SIG_UNBLOCK, &alone, &mask);
    return sigismember(&mask, signal) == 1 ? SIG_HOLD : before.sa_handler;
}

EXPORT int sigignore(int signal) noexcept {
    Action before{};
    if (signals::set(signal, simple(SIG_IGN, 0), before)) return 0;
    const int result = real::sigignore()(signal);
    if (result == 0) signals::after_libc_set(signal);
    return result;
}

EXPORT int siginterrupt(int signal, int interrupting) noexcept {
    if (signals::set_interrupting(signal, interrupting != 0)) return 0;
    const int result = real::siginterrupt()(signal, interrupting);
    if (result != 0) return result;
    signals::note_interrupting(signal, interrupting != 0);
    signals::after_libc_set(signal);
    return result;
}
