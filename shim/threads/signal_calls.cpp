// The ways to set what a signal does. For the signal that curb has taken the program's wish stands behind curb's
// handler; for the others, and in children that share our memory, libc is asked. glibc sets actions by an internal name
// in all of these, so each has to be stood in front of.
//
// Async-signal-safe, as they are without us.

#include "signals.hpp"

#include "real_libc.hpp"

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

// In glibc's struct sa_handler and sa_sigaction are the same field.
Handler hidden(int signal, Handler told) noexcept {
    Action action = simple(told, 0);
    signals::hide(signal, action);
    return action.sa_handler;
}

// For the functions that give back a handler: what was in force before, by curb or else by `libc`.
template <class Libc>
Handler set_handler(int signal, const Action &wanted, Libc libc) noexcept {
    Action before{};
    if (wanted.sa_handler != SIG_ERR && signals::set(signal, wanted, before)) return before.sa_handler;
    const Handler told = libc();
    if (told == SIG_ERR) return told;
    signals::was_set(signal);
    return hidden(signal, told);
}

#define EXPORT extern "C" __attribute__((visibility("default")))

// The handler stays, and system calls restart unless siginterrupt has said otherwise.
Handler set_bsd(int signal, Handler handler) noexcept {
    const bool known = signal > 0 && signal <= 64;
    Action action = simple(handler, known && signals::interrupting(signal) ? 0 : SA_RESTART);
    if (known) sigaddset(&action.sa_mask, signal);
    return set_handler(signal, action, [=] { return real::signal()(signal, handler); });
}

// The handler is for one delivery, and does not defer the next.
Handler set_sysv(int signal, Handler handler) noexcept {
    const Action action = simple(handler, static_cast<int>(static_cast<unsigned>(SA_RESETHAND) | SA_NODEFER));
    return set_handler(signal, action, [=] { return real::sysv_signal()(signal, handler); });
}

int set_action(int signal, const Action *action, Action *old) noexcept {
    if (action) {
        Action before{};  // `old` may be the same object as `action`
        if (signals::set(signal, *action, before)) {
            if (old) *old = before;
            return 0;
        }
    }
    const int result = real::sigaction()(signal, action, old);
    if (result != 0) return result;
    if (action) signals::was_set(signal);
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

// What signal() is in programs compiled for strict X/Open.
EXPORT sighandler_t sysv_signal(int signal, sighandler_t handler) noexcept { return set_sysv(signal, handler); }
EXPORT sighandler_t __sysv_signal(int signal, sighandler_t handler) noexcept { return set_sysv(signal, handler); }

// With SIG_HOLD the mask alone is set, which is libc's business. Else the signal is unblocked too, and SIG_HOLD is what
// it was if it was blocked.
EXPORT sighandler_t sigset(int signal, sighandler_t handler) noexcept {
    Action before{};
    if (handler == SIG_HOLD || !signals::set(signal, simple(handler, 0), before)) {
        const Handler told = real::sigset()(signal, handler);
        if (told == SIG_ERR || told == SIG_HOLD) return told;
        if (handler != SIG_HOLD) signals::was_set(signal);
        return hidden(signal, told);
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
    if (result == 0) signals::was_set(signal);
    return result;
}

EXPORT int siginterrupt(int signal, int interrupting) noexcept {
    if (signals::set_interrupting(signal, interrupting != 0)) return 0;
    const int result = real::siginterrupt()(signal, interrupting);
    if (result != 0) return result;
    signals::note_interrupting(signal, interrupting != 0);
    signals::was_set(signal);
    return result;
}
