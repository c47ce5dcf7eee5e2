// Helpers of the scenarios about signals: the ways to set a handler, handlers that count, and the kernel's own action.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>

#include "live.hpp"

extern "C" sighandler_t bsd_signal(int signal, sighandler_t handler) noexcept;
extern "C" int __sigaction(int signal, const struct sigaction *action, struct sigaction *old) noexcept;

namespace scenario {

inline std::atomic<int> handled{0}, handled_other{0};
inline void count(int) { handled.fetch_add(1); }
inline void count_other(int) { handled_other.fetch_add(1); }

inline int release_signal() {
    const char *number = std::getenv("RELEASE_SIGNAL");
    return number ? std::atoi(number) : SIGUSR1;
}

// A way to set a handler. `set` returns the earlier one.
struct Way {
    const char *name;
    sighandler_t (*set)(int, sighandler_t);
    bool once = false;    // for one delivery
    bool simple = false;  // takes only the handler, and fails for SIG_ERR
};

template <auto Function>
sighandler_t by_action(int signal, sighandler_t handler, int flags = 0) {
    struct sigaction action {
    }, old{};
    action.sa_handler = handler;
    action.sa_flags = flags;
    return Function(signal, &action, &old) == 0 ? old.sa_handler : SIG_ERR;
}

inline const std::vector<Way> &ways() {
    static const std::vector<Way> list = {
        {"sigaction", [](int number, sighandler_t handler) { return by_action<::sigaction>(number, handler); }},
        {"__sigaction", [](int number, sighandler_t handler) { return by_action<::__sigaction>(number, handler); }},
        {"sigaction once",
         [](int number, sighandler_t handler) {
             return by_action<::sigaction>(number, handler, static_cast<int>(SA_RESETHAND));
         },
         true},
        {"one object for both",
         [](int number, sighandler_t handler) {
             struct sigaction both {};
             both.sa_handler = handler;
             struct sigaction *volatile before = &both;  // programs do so, and GCC 14 warns of it if it sees that
             return ::sigaction(number, &both, before) == 0 ? both.sa_handler : SIG_ERR;
         }},
        {"signal", [](int number, sighandler_t handler) { return ::signal(number, handler); }, false, true},
        {"bsd_signal", [](int number, sighandler_t handler) { return ::bsd_signal(number, handler); }, false, true},
        {"ssignal", [](int number, sighandler_t handler) { return ::ssignal(number, handler); }, false, true},
        {"sysv_signal", [](int number, sighandler_t handler) { return ::sysv_signal(number, handler); }, true, true},
        {"__sysv_signal", [](int number, sighandler_t handler) { return ::__sysv_signal(number, handler); }, true,
         true},
        {"sigset", [](int number, sighandler_t handler) { return ::sigset(number, handler); }},
        {"signal and siginterrupt",
         [](int number, sighandler_t handler) {
             const sighandler_t before = ::signal(number, handler);
             ::siginterrupt(number, 1);
             return before;
         }},
    };
    return list;
}
inline const Way &way_of_this_run() {
    for (const Way &way : ways())
        if (std::strcmp(way.name, std::getenv("WAY")) == 0) return way;
    std::fprintf(stderr, "no such way\n");
    std::abort();
}

// Returns the handler that sigaction reports.
inline sighandler_t current_handler(int signal) {
    struct sigaction action {};
    EXPECT_EQ(sigaction(signal, nullptr, &action), 0);
    return action.sa_handler;
}

// The kernel's layout, for programs that make the system call themselves.
struct KernelAction {
    sighandler_t handler;
    unsigned long flags;
    void (*restorer)();
    std::uint64_t mask;
};
inline sighandler_t kernel_handler(int signal) {
    KernelAction action{};
    EXPECT_EQ(syscall(SYS_rt_sigaction, signal, nullptr, &action, sizeof action.mask), 0);
    return action.handler;
}
// Sets a handler by the system call, past every library. Keeps the rest of the earlier action.
inline void set_by_system_call(int signal, sighandler_t handler) {
    KernelAction action{};
    EXPECT_EQ(syscall(SYS_rt_sigaction, signal, nullptr, &action, sizeof action.mask), 0);
    action.handler = handler;
    EXPECT_EQ(syscall(SYS_rt_sigaction, signal, &action, nullptr, sizeof action.mask), 0);
}

inline void name_release_signal(const char *name) {
    edit(std::string(R"({ "version": 1, "release": { "signal": ")") + name + R"(" } })");
}
// Waits until curb has the signal: the kernel's handler is then neither a default nor the one that sigaction reports.
inline bool comes_into_force(int signal) {
    return within(std::chrono::seconds(10), [signal] {
        const sighandler_t there = kernel_handler(signal);
        return there != SIG_DFL && there != SIG_IGN && there != current_handler(signal);
    });
}

inline void send_and_see_the_release() {
    leave_memory_in_the_pool();
    kill(getpid(), release_signal());
    EXPECT(pool_came_back());
}

}  // namespace scenario
