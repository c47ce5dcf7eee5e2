// The program's own signal handling under curb: every way to set a handler, flags and masks, sigwait and signalfd.
// RELEASE_SIGNAL is the number of the policy's signal; SIGUSR1 unless set.

#include <pthread.h>
#include <sched.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <functional>
#include <thread>

#include "signal_ways.hpp"

using namespace scenario;

// WAY and ORDER are set by the test.
SCENARIO_NAMED(a_handler_is_kept_and_the_release_runs) {
    const Way &way = way_of_this_run();
    const std::string order = std::getenv("ORDER");
    const int signal = release_signal();
    if (order == "before") way.set(signal, count);
    if (order == "both") way.set(signal, count_other);
    start();
    if (order == "after") way.set(signal, count);
    // The returned old handler is the program's own. One for a single delivery is still set: no signal has come yet.
    if (order == "both") EXPECT(way.set(signal, count) == static_cast<sighandler_t>(count_other));
    EXPECT(current_handler(signal) == count);
    send_and_see_the_release();
    EXPECT_EQ(handled.load(), 1);
    EXPECT(current_handler(signal) == (way.once ? SIG_DFL : static_cast<sighandler_t>(count)));
    send_and_see_the_release();
    EXPECT_EQ(handled.load(), way.once ? 1 : 2);
    EXPECT_EQ(handled_other.load(), 0);
    // And back to none.
    EXPECT(way.set(signal, SIG_DFL) == (way.once ? SIG_DFL : static_cast<sighandler_t>(count)));
    send_and_see_the_release();
    EXPECT_EQ(handled.load(), way.once ? 1 : 2);
    // curb leaves other signals alone.
    const int other = signal == SIGUSR2 ? SIGUSR1 : SIGUSR2;
    EXPECT(way.set(other, count_other) == SIG_DFL);
    raise(other);
    EXPECT_EQ(handled_other.load(), 1);
}

SCENARIO_NAMED(usr1_trims_what_pools_keep) {
    start();
    send_and_see_the_release();
    EXPECT(within(std::chrono::seconds(2), [] { return shown_held() == kContext; }));
}

SCENARIO_NAMED(ends_while_a_release_trims_a_pool) {
    start();
    leave_memory_in_the_pool();
    curb_sim_hold_return("cuMemPoolTrimTo");
    kill(getpid(), release_signal());
    EXPECT(within(std::chrono::seconds(5), [] { return curb_sim_calls("cuMemPoolTrimTo") > 0; }));
    std::thread([] {
        std::this_thread::sleep_for(std::chrono::milliseconds(30));  // the main thread is in exit() by then
        curb_sim_hold_return(nullptr);
    }).detach();
}

SCENARIO_NAMED(wrong_arguments_fail_as_without_curb) {
    start();
    struct sigaction action {};
    for (const int signal : {0, -1, 65, 1000, SIGKILL, SIGSTOP, 32, 33}) {
        action.sa_handler = count;
        errno = 0;
        EXPECT(sigaction(signal, &action, nullptr) == -1 && errno == EINVAL);
        for (const Way &way : ways()) {
            errno = 0;
            EXPECT(way.set(signal, count) == SIG_ERR && errno == EINVAL);
        }
    }
    for (const Way &way : ways()) {
        errno = 0;
        if (way.simple) EXPECT(way.set(SIGUSR1, SIG_ERR) == SIG_ERR && errno == EINVAL);
    }
    EXPECT(current_handler(SIGUSR1) == SIG_DFL);
    errno = 4711;
    sigaction(SIGUSR1, nullptr, &action);
    signal(SIGUSR1, count);
    sigset(SIGUSR1, count);
    siginterrupt(SIGUSR1, 1);
    raise(SIGUSR1);
    EXPECT_EQ(errno, 4711);
}

SCENARIO_NAMED(the_mask_and_the_flags_of_a_handler_hold_while_it_runs) {
    static int depth = 0, deepest = 0;
    static bool on_alternative = false, other_blocked = false;
    static stack_t alternative{};
    start();
    alternative.ss_size = 64 * KiB;
    alternative.ss_sp = std::malloc(alternative.ss_size);
    EXPECT_EQ(sigaltstack(&alternative, nullptr), 0);
    struct sigaction action {};
    action.sa_handler = [](int signal) {
        deepest = std::max(deepest, ++depth);
        if (handled.fetch_add(1) == 0) raise(signal);
        sigset_t mask;
        pthread_sigmask(SIG_BLOCK, nullptr, &mask);
        other_blocked = sigismember(&mask, SIGUSR2) == 1;
        // Not a local's address: AddressSanitizer may keep locals elsewhere.
        const char *here = static_cast<char *>(__builtin_frame_address(0)),
                   *begin = static_cast<char *>(alternative.ss_sp);
        on_alternative = here >= begin && here < begin + alternative.ss_size;
        --depth;
    };
    struct Wish {
        int flags;
        bool masks;
    };
    for (const Wish &wish : {Wish{0, false}, Wish{SA_NODEFER, false}, Wish{SA_ONSTACK, true}, Wish{0, true},
                             Wish{SA_NODEFER | SA_ONSTACK, true}}) {
        handled = deepest = 0;
        action.sa_flags = wish.flags;
        sigemptyset(&action.sa_mask);
        if (wish.masks) sigaddset(&action.sa_mask, SIGUSR2);
        sigaction(SIGUSR1, &action, nullptr);
        raise(SIGUSR1);
        EXPECT_EQ(handled.load(), 2);
        EXPECT_EQ(deepest, wish.flags & SA_NODEFER ? 2 : 1);
        EXPECT_EQ(on_alternative, (wish.flags & SA_ONSTACK) != 0);
        EXPECT_EQ(other_blocked, wish.masks);
    }
    std::free(alternative.ss_sp);
}

namespace {

// Reads from a pipe while another thread sends the signal. True if the read was interrupted. Without a handler that
// counts, the thread sends 1,000 signals.
bool read_is_interrupted() {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    handled = 0;
    std::atomic<bool> done{false};
    const pthread_t reader = pthread_self();
    ssize_t got = 0;
    int error = 0;
    {
        const std::jthread sender([&] {
            // After 50 runs of the handler the read has not been interrupted.
            for (int sent = 0; !done && handled < 50 && (sent < 1000 || current_handler(SIGUSR1) == count); ++sent) {
                pthread_kill(reader, SIGUSR1);
                sched_yield();
            }
            EXPECT_EQ(write(ends[1], "x", 1), 1);
        });
        char byte = 0;
        got = read(ends[0], &byte, 1);
        error = errno;
        done = true;
    }
    close(ends[0]);
    close(ends[1]);
    EXPECT(got == 1 || error == EINTR);
    return got != 1;
}

}  // namespace

SCENARIO_NAMED(system_calls_are_interrupted_or_go_on_as_the_program_chose) {
    start();
    EXPECT(!read_is_interrupted());  // the program has no handler, so it must notice nothing
    struct sigaction action {};
    action.sa_handler = count;
    sigaction(SIGUSR1, &action, nullptr);
    EXPECT(read_is_interrupted());
    action.sa_flags = SA_RESTART;
    sigaction(SIGUSR1, &action, nullptr);
    EXPECT(!read_is_interrupted());
    // siginterrupt applies to the handler that is set, and to those that signal() sets afterwards.
    siginterrupt(SIGUSR1, 1);
    sigaction(SIGUSR1, nullptr, &action);
    EXPECT(!(action.sa_flags & SA_RESTART) && action.sa_handler == count);
    EXPECT(read_is_interrupted());
    signal(SIGUSR1, count);
    EXPECT(read_is_interrupted());
    siginterrupt(SIGUSR1, 0);
    EXPECT(!read_is_interrupted());
    signal(SIGUSR1, count);
    EXPECT(!read_is_interrupted());
    sysv_signal(SIGUSR1, count);
    sigaction(SIGUSR1, nullptr, &action);
    EXPECT(!(action.sa_flags & SA_RESTART) && (action.sa_flags & SA_NODEFER));
    sigset(SIGUSR1, count);
    EXPECT(read_is_interrupted());
}

SCENARIO_NAMED(what_siginterrupt_said_outlives_the_signal_being_ours) {  // a live policy: SIGUSR1, then SIGUSR2
    siginterrupt(SIGUSR1, 1);
    start();
    signal(SIGUSR1, count);
    EXPECT(read_is_interrupted());
    siginterrupt(SIGUSR1, 0);
    siginterrupt(SIGUSR2, 1);
    name_release_signal("SIGUSR2");
    EXPECT(comes_into_force(SIGUSR2));
    EXPECT(!read_is_interrupted());
    signal(SIGUSR1, count);
    EXPECT(!read_is_interrupted());
    struct sigaction action {};
    signal(SIGUSR2, count);
    sigaction(SIGUSR2, nullptr, &action);
    EXPECT(!(action.sa_flags & SA_RESTART));
}

SCENARIO_NAMED(sigset_holds_and_lets_go) {
    start();
    EXPECT(sigset(SIGUSR1, count) == SIG_DFL);
    EXPECT(sigset(SIGUSR1, SIG_HOLD) == static_cast<sighandler_t>(count));
    leave_memory_in_the_pool();
    raise(SIGUSR1);
    EXPECT_EQ(handled.load(), 0);
    EXPECT(sigset(SIGUSR1, SIG_HOLD) == SIG_HOLD);
    EXPECT(sigset(SIGUSR1, count) == SIG_HOLD);  // it was held; now it is not
    EXPECT_EQ(handled.load(), 1);
    EXPECT(pool_came_back());
    EXPECT(sigset(SIGUSR1, count_other) == static_cast<sighandler_t>(count));
    sighold(SIGUSR1);
    raise(SIGUSR1);
    EXPECT_EQ(handled_other.load(), 0);
    sigrelse(SIGUSR1);
    EXPECT_EQ(handled_other.load(), 1);
}

SCENARIO_NAMED(a_blocked_signal_comes_when_it_is_let_through) {
    sigset_t alone;
    sigemptyset(&alone);
    sigaddset(&alone, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &alone, nullptr);
    kill(getpid(), SIGUSR1);  // before the first cuInit: it stays pending
    start();
    signal(SIGUSR1, count);
    leave_memory_in_the_pool();
    EXPECT_EQ(handled.load(), 0);
    pthread_sigmask(SIG_UNBLOCK, &alone, nullptr);
    EXPECT_EQ(handled.load(), 1);
    EXPECT(pool_came_back());
    // A thread that does not block it gets it instead of this one.
    pthread_sigmask(SIG_BLOCK, &alone, nullptr);
    std::atomic<bool> done{false};
    {
        const std::jthread other([&] {
            pthread_sigmask(SIG_UNBLOCK, &alone, nullptr);
            EXPECT(within(std::chrono::seconds(5), [&] { return done.load(); }));
        });
        leave_memory_in_the_pool();
        kill(getpid(), SIGUSR1);
        EXPECT(pool_came_back());
        EXPECT(within(std::chrono::seconds(5), [] { return handled.load() == 2; }));
        done = true;
    }
}

SCENARIO_NAMED(sigwait_and_signalfd_get_every_signal) {
    const int signal = release_signal();
    constexpr int kSent = 1000;
    sigset_t alone;
    sigemptyset(&alone);
    sigaddset(&alone, signal);
    pthread_sigmask(SIG_BLOCK, &alone, nullptr);
    start();
    const int file = signalfd(-1, &alone, SFD_CLOEXEC);
    const timespec deadline{5, 0};
    const std::function<int()> waits[] = {
        [&] {
            int got = 0;
            sigwait(&alone, &got);
            return got;
        },
        [&] { return sigwaitinfo(&alone, nullptr); },
        [&] { return sigtimedwait(&alone, nullptr, &deadline); },
        [&] {
            signalfd_siginfo got{};
            return read(file, &got, sizeof got) == sizeof got ? static_cast<int>(got.ssi_signo) : 0;
        },
    };
    leave_memory_in_the_pool();
    for (const auto &wait : waits)
        for (int i = 0; i < kSent; ++i) {
            kill(getpid(), signal);
            EXPECT_EQ(wait(), signal);
        }
    // They got every signal, and none asked for a release.
    sigset_t pending;
    sigpending(&pending);
    EXPECT_EQ(sigismember(&pending, signal), 0);
    EXPECT_EQ(curb_sim_held(0), kContext + 256 * MiB);
}

SCENARIO_NAMED(a_handler_set_by_a_system_call_is_left_alone) {  // a live policy
    start();
    set_by_system_call(SIGUSR1, count);
    leave_memory_in_the_pool();
    raise(SIGUSR1);
    EXPECT_EQ(handled.load(), 1);
    EXPECT(current_handler(SIGUSR1) == count);
    edit(policy_with_cap("4GiB"));  // an edit of something else, at which curb sees the handler
    EXPECT(within(std::chrono::seconds(10), [] { return shown_total() == 4 * GiB; }));
    name_release_signal("SIGUSR2");
    EXPECT(comes_into_force(SIGUSR2));
    EXPECT(kernel_handler(SIGUSR1) == count);
    raise(SIGUSR1);
    EXPECT_EQ(handled.load(), 2);
    EXPECT_EQ(curb_sim_held(0), kContext + 256 * MiB);
    kill(getpid(), SIGUSR2);
    EXPECT(pool_came_back());
    // SIGUSR1 again: it stays the program's, as the program's handler may call the one that it replaced.
    name_release_signal("SIGUSR1");
    EXPECT(within(std::chrono::seconds(10), [] { return kernel_handler(SIGUSR2) == SIG_DFL; }));
    raise(SIGUSR1);
    EXPECT_EQ(handled.load(), 3);
    EXPECT(kernel_handler(SIGUSR1) == count);
}

// Like Python's faulthandler with `chain`: it restores the earlier handler, raises the signal, and sets itself again.
SCENARIO_NAMED(a_handler_that_lets_the_one_before_it_run_stays) {
    static struct sigaction before {
    }, own{};
    start();
    signal(SIGUSR1, count);
    own.sa_flags = SA_NODEFER;
    own.sa_handler = [](int signal) {
        count_other(signal);
        sigaction(signal, &before, nullptr);
        raise(signal);
        sigaction(signal, &own, nullptr);
    };
    sigaction(SIGUSR1, &own, &before);
    for (const int times : {1, 2}) {
        send_and_see_the_release();
        EXPECT_EQ(handled_other.load(), times);
        EXPECT_EQ(handled.load(), times);
    }
    sigaction(SIGUSR1, &before, nullptr);
    send_and_see_the_release();
    EXPECT_EQ(handled_other.load(), 2);
    EXPECT_EQ(handled.load(), 3);
}

SCENARIO_NAMED(a_handler_that_ends_in_the_one_before_it_ends) {
    static void (*before)(int, siginfo_t *, void *) = nullptr;
    start();
    signal(SIGUSR1, count);
    // curb's handler, as a runtime finds it that asks the kernel.
    const sighandler_t there = kernel_handler(SIGUSR1);
    EXPECT(there != count);
    std::memcpy(&before, &there, sizeof before);
    set_by_system_call(SIGUSR1, [](int signal) { before(signal, nullptr, nullptr); });
    send_and_see_the_release();
    EXPECT_EQ(handled.load(), 1);
    // Set again through libc, curb's handler must not call itself.
    struct sigaction action {};
    action.sa_sigaction = before;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGUSR1, &action, nullptr);
    send_and_see_the_release();
    EXPECT_EQ(handled.load(), 2);
    EXPECT(current_handler(SIGUSR1) == count);
    // The program's next handler replaces the one that it set by the system call.
    set_by_system_call(SIGUSR1, count_other);
    EXPECT(signal(SIGUSR1, count) == static_cast<sighandler_t>(count_other));
    send_and_see_the_release();
    EXPECT_EQ(handled.load(), 3);
}
