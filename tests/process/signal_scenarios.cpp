// What becomes of the program's own signal handling: every way to set a handler, its flags and mask, who takes the
// signal by itself, and children. RELEASE_SIGNAL names the signal of the policy by its number; SIGUSR1 unless set.

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <functional>

#include "live.hpp"
#include "scenario.hpp"
#include "signal_ways.hpp"

using namespace scenario;

namespace {

bool ignored_in_kernel(int signal) {
    struct sigaction action {};
    sigaction(signal, nullptr, &action);
    return action.sa_handler == SIG_IGN;
}

void send_and_see_the_release() {
    leave_memory_in_the_pool();
    kill(getpid(), release_signal());
    EXPECT(pool_came_back());
}

// A thread of its own that runs `body` and is joined.
class Joined {
  public:
    template <class Body>
    explicit Joined(Body body) : thread_(std::move(body)) {}
    ~Joined() { thread_.join(); }

  private:
    std::thread thread_;
};

int status_of(pid_t child) {
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return status;
}

bool died_of(int status, int signal) { return WIFSIGNALED(status) && WTERMSIG(status) == signal; }

// A child for which no fork handler runs, of its own memory.
pid_t raw_fork() { return static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr)); }

}  // namespace

// WAY and ORDER are set by the test.
SCENARIO_NAMED(a_handler_is_kept_and_the_release_runs) {
    const Way &way = way_of_this_run();
    const std::string order = std::getenv("ORDER");
    const int signal = release_signal();
    if (order == "before") way.set(signal, count);
    if (order == "both") way.set(signal, count_other);
    start();
    if (order == "after") way.set(signal, count);
    // What is told to be replaced is the program's own; the one of a single delivery has had none yet.
    if (order == "both") EXPECT(way.set(signal, count) == static_cast<sighandler_t>(count_other));
    EXPECT(handler_told(signal) == count);
    send_and_see_the_release();
    EXPECT_EQ(handled.load(), 1);
    EXPECT(handler_told(signal) == (way.once ? SIG_DFL : static_cast<sighandler_t>(count)));
    send_and_see_the_release();
    EXPECT_EQ(handled.load(), way.once ? 1 : 2);
    EXPECT_EQ(handled_other.load(), 0);
    // And back to none.
    EXPECT(way.set(signal, SIG_DFL) == (way.once ? SIG_DFL : static_cast<sighandler_t>(count)));
    send_and_see_the_release();
    EXPECT_EQ(handled.load(), way.once ? 1 : 2);
    // Other signals are none of curb's business.
    const int other = signal == SIGUSR2 ? SIGUSR1 : SIGUSR2;
    EXPECT(way.set(other, count_other) == SIG_DFL);
    raise(other);
    EXPECT_EQ(handled_other.load(), 1);
}

SCENARIO_NAMED(usr1_trims_what_pools_keep) {
    start();
    send_and_see_the_release();
    EXPECT(within(std::chrono::seconds(2), [] { return told_held() == kContext; }));
}

SCENARIO_NAMED(bad_wishes_fail_as_without_curb) {
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
    EXPECT(handler_told(SIGUSR1) == SIG_DFL);
    errno = 4711;
    sigaction(SIGUSR1, nullptr, &action);
    signal(SIGUSR1, count);
    sigset(SIGUSR1, count);
    siginterrupt(SIGUSR1, 1);
    raise(SIGUSR1);
    EXPECT_EQ(errno, 4711);
}

SCENARIO_NAMED(a_handler_with_information_gets_it) {
    static std::atomic<int> value{0};
    static std::atomic<pid_t> sender{0};
    start();
    struct sigaction action {
    }, told{};
    action.sa_sigaction = [](int, siginfo_t *info, void *context) {
        value = info->si_value.sival_int;
        sender = info->si_pid;
        if (context) handled.fetch_add(1);
    };
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGUSR1, &action, nullptr);
    sigval sent{};
    sent.sival_int = 4711;
    leave_memory_in_the_pool();
    EXPECT_EQ(sigqueue(getpid(), SIGUSR1, sent), 0);
    EXPECT(pool_came_back());
    EXPECT_EQ(handled.load(), 1);
    EXPECT_EQ(value.load(), 4711);
    EXPECT_EQ(sender.load(), getpid());
    sigaction(SIGUSR1, nullptr, &told);
    EXPECT(told.sa_sigaction == action.sa_sigaction && (told.sa_flags & SA_SIGINFO));
    // The default action stays the default one, whatever the flags say.
    action.sa_handler = SIG_DFL;
    sigaction(SIGUSR1, &action, &action);
    EXPECT(action.sa_sigaction == told.sa_sigaction);
    send_and_see_the_release();
    EXPECT_EQ(handled.load(), 1);
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
        const char *here = reinterpret_cast<char *>(&mask), *begin = static_cast<char *>(alternative.ss_sp);
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

// Reads from a pipe in this thread while another sends the signal; true: the read was interrupted. Without a handler
// that counts, a thousand signals have to do.
bool read_is_interrupted() {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    handled = 0;
    std::atomic<bool> done{false};
    const pthread_t reader = pthread_self();
    ssize_t got = 0;
    int error = 0;
    {
        const Joined sender([&] {
            // Once the handler has run a few times within the read it has not been interrupted.
            for (int sent = 0; !done && handled < 50 && (sent < 1000 || handler_told(SIGUSR1) == count); ++sent) {
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
    EXPECT(!read_is_interrupted());  // no handler of the program's, so nothing that it would notice
    struct sigaction action {};
    action.sa_handler = count;
    sigaction(SIGUSR1, &action, nullptr);
    EXPECT(read_is_interrupted());
    action.sa_flags = SA_RESTART;
    sigaction(SIGUSR1, &action, nullptr);
    EXPECT(!read_is_interrupted());
    // siginterrupt says it for the handler that is there, and for those that signal() sets afterwards.
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
    kill(getpid(), SIGUSR1);  // before the first cuInit: it waits
    start();
    signal(SIGUSR1, count);
    leave_memory_in_the_pool();
    EXPECT_EQ(handled.load(), 0);
    pthread_sigmask(SIG_UNBLOCK, &alone, nullptr);
    EXPECT_EQ(handled.load(), 1);
    EXPECT(pool_came_back());
    // Another thread that does not block it gets it in this one's place.
    pthread_sigmask(SIG_BLOCK, &alone, nullptr);
    std::atomic<bool> done{false};
    {
        const Joined other([&] {
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

SCENARIO_NAMED(who_waits_for_the_signal_gets_every_one) {
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
    // It was theirs alone.
    sigset_t pending;
    sigpending(&pending);
    EXPECT_EQ(sigismember(&pending, signal), 0);
    EXPECT_EQ(curb_sim_held(0), kContext + 256 * MiB);
}

SCENARIO_NAMED(a_default_that_does_nothing_may_come_at_any_time) {  // SIGURG, SIGWINCH
    kill(getpid(), release_signal());                               // before the first cuInit, without a handler
    start();
    send_and_see_the_release();
    const pid_t child = fork();
    if (child == 0) _exit(raise(release_signal()));
    EXPECT_EQ(status_of(child), 0);
}

SCENARIO_NAMED(before_the_first_cuinit_the_signal_is_the_programs) {
    const pid_t child = fork();
    if (child == 0) {
        raise(SIGUSR1);
        _exit(0);
    }
    EXPECT(died_of(status_of(child), SIGUSR1));
    signal(SIGUSR1, count);
    raise(SIGUSR1);
    EXPECT_EQ(handled.load(), 1);
}

// What this program finds as the action of the signal when it starts: 0 the default one, 1 ignored, 2 a handler.
SCENARIO_NAMED(child_tells_the_action_it_was_started_with) {
    const sighandler_t told = handler_told(release_signal());
    _exit(told == SIG_DFL ? 0 : told == SIG_IGN ? 1 : 2);
}

namespace {

constexpr const char *kSelf = "/proc/self/exe";
char *const kTells[] = {const_cast<char *>("scenarios"),
                        const_cast<char *>("child_tells_the_action_it_was_started_with"), nullptr};

// What programs find that are started in each way there is.
void children_find(int action) {
    pid_t child = fork();
    if (child == 0) {
        execv(kSelf, kTells);
        _exit(99);
    }
    EXPECT_EQ(WEXITSTATUS(status_of(child)), action);
    child = vfork();
    if (child == 0) {
        execv(kSelf, kTells);
        _exit(99);
    }
    EXPECT_EQ(WEXITSTATUS(status_of(child)), action);
    child = raw_fork();
    if (child == 0) {
        execv(kSelf, kTells);
        _exit(99);
    }
    EXPECT_EQ(WEXITSTATUS(status_of(child)), action);
    EXPECT_EQ(posix_spawn(&child, kSelf, nullptr, nullptr, kTells, environ), 0);
    EXPECT_EQ(WEXITSTATUS(status_of(child)), action);
    const std::string command = std::filesystem::read_symlink(kSelf).string() + " " + kTells[1];
    const int status = system(command.c_str());
    EXPECT_EQ(WEXITSTATUS(status), action);
    FILE *shell = popen(command.c_str(), "r");
    EXPECT_EQ(WEXITSTATUS(pclose(shell)), action);
}

}  // namespace

SCENARIO_NAMED(what_a_program_starts_finds_what_it_would_without_curb) {
    start();
    children_find(0);
    signal(release_signal(), count);  // exec makes it the default action
    children_find(0);
    signal(release_signal(), SIG_IGN);
    children_find(1);
    sigignore(release_signal());
    children_find(1);
    signal(release_signal(), SIG_DFL);
    children_find(0);
    send_and_see_the_release();
}

SCENARIO_NAMED(an_ignored_signal_stays_ignored) {  // from before the first cuInit
    signal(release_signal(), SIG_IGN);
    start();
    children_find(1);
    leave_memory_in_the_pool();
    for (int i = 0; i < 100; ++i) kill(getpid(), release_signal());
    EXPECT(ignored_in_kernel(release_signal()));
    for (const char *cap : {"4GiB", "5GiB"}) {
        write_by_rename(policy_file(), std::string(R"({ "version": 1, "release": { "signal": "SIGHUP" }, )") +
                                           R"("gpu": { "*": { "cap": ")" + cap + R"(" } } })");
        EXPECT(within(std::chrono::seconds(10), [&] { return told_total() == std::strtoull(cap, nullptr, 10) * GiB; }));
    }
    EXPECT(ignored_in_kernel(release_signal()));
    // A handler asks for releases again.
    EXPECT(signal(release_signal(), count) == SIG_IGN);
    kill(getpid(), release_signal());
    EXPECT(pool_came_back());
    EXPECT_EQ(handled.load(), 1);
}

SCENARIO_NAMED(a_child_that_shares_our_memory_leaves_the_parents_handler_alone) {
    start();
    signal(SIGUSR1, count);
    // As subprocess does: in a child of vfork every handler is reset before exec.
    const pid_t child = vfork();
    if (child == 0) {
        struct sigaction action {
        }, told{};
        sigaction(SIGUSR1, nullptr, &told);
        action.sa_handler = SIG_DFL;
        sigaction(SIGUSR1, &action, nullptr);
        _exit(told.sa_handler == count ? 0 : 1);
    }
    EXPECT_EQ(status_of(child), 0);
    EXPECT(handler_told(SIGUSR1) == count);
    send_and_see_the_release();
    EXPECT_EQ(handled.load(), 1);
    // A signal of the child's is the child's, also while the parent's handlers are still there.
    leave_memory_in_the_pool();
    const pid_t raises = vfork();
    if (raises == 0) {
        raise(SIGUSR1);
        _exit(0);
    }
    EXPECT_EQ(status_of(raises), 0);
    EXPECT_EQ(handled.load(), 2);  // its memory is ours
    EXPECT(!within(std::chrono::milliseconds(100), [] { return curb_sim_held(0) == kContext; }));
}

SCENARIO_NAMED(a_signal_in_a_child_before_its_fork_handlers_have_run_is_the_childs) {
    start();
    leave_memory_in_the_pool();
    pid_t child = raw_fork();
    if (child == 0) {
        raise(SIGUSR1);
        _exit(0);
    }
    EXPECT(died_of(status_of(child), SIGUSR1));
    signal(SIGUSR1, count);
    child = raw_fork();
    if (child == 0) {
        raise(SIGUSR1);
        _exit(handled == 1 ? 0 : 1);
    }
    EXPECT_EQ(status_of(child), 0);
    sysv_signal(SIGUSR1, count);  // one delivery in each process
    child = raw_fork();
    if (child == 0) {
        raise(SIGUSR1);
        if (handled != 1) _exit(1);
        raise(SIGUSR1);
        _exit(0);
    }
    EXPECT(died_of(status_of(child), SIGUSR1));
    EXPECT(!within(std::chrono::milliseconds(100), [] { return curb_sim_held(0) == kContext; }));
    EXPECT(handler_told(SIGUSR1) == count);
    send_and_see_the_release();
    EXPECT_EQ(handled.load(), 1);
}

SCENARIO_NAMED(a_fork_child_and_its_child_have_handlers_of_their_own) {
    start();
    signal(SIGUSR1, count);
    const pid_t child = fork();
    if (child == 0) {
        raise(SIGUSR1);
        if (handled != 1 || kernel_handler(SIGUSR1) != count) _exit(1);
        if (signal(SIGUSR1, count_other) != count) _exit(2);
        const pid_t grandchild = fork();
        if (grandchild == 0) {
            raise(SIGUSR1);
            _exit(handled_other == 1 && handled == 1 ? 0 : 3);
        }
        const int status = status_of(grandchild);
        signal(SIGUSR1, SIG_DFL);
        if (status == 0) raise(SIGUSR1);  // ends it, as it would without curb
        _exit(4);
    }
    EXPECT(died_of(status_of(child), SIGUSR1));
    EXPECT(handler_told(SIGUSR1) == count);
    send_and_see_the_release();
    EXPECT_EQ(handled.load(), 1);
}

SCENARIO_NAMED(a_handler_set_past_us_is_left_alone) {  // a live policy
    start();
    set_past_curb(SIGUSR1, count);
    leave_memory_in_the_pool();
    raise(SIGUSR1);
    EXPECT_EQ(handled.load(), 1);
    EXPECT(handler_told(SIGUSR1) == count);
    write_by_rename(policy_file(), policy_with_cap("4GiB"));  // an edit of something else, by which it is seen
    EXPECT(within(std::chrono::seconds(10), [] { return told_total() == 4 * GiB; }));
    name_release_signal("SIGUSR2");
    EXPECT(comes_into_force(SIGUSR2));
    EXPECT(kernel_handler(SIGUSR1) == count);
    raise(SIGUSR1);
    EXPECT_EQ(handled.load(), 2);
    EXPECT_EQ(curb_sim_held(0), kContext + 256 * MiB);
    kill(getpid(), SIGUSR2);
    EXPECT(pool_came_back());
    // Back again: it stays the program's, whose handler may end in the one that it has replaced.
    name_release_signal("SIGUSR1");
    EXPECT(within(std::chrono::seconds(10), [] { return kernel_handler(SIGUSR2) == SIG_DFL; }));
    raise(SIGUSR1);
    EXPECT_EQ(handled.load(), 3);
    EXPECT(kernel_handler(SIGUSR1) == count);
}

SCENARIO_NAMED(a_handler_that_ends_in_the_one_before_it_ends) {
    static void (*before)(int, siginfo_t *, void *) = nullptr;
    start();
    signal(SIGUSR1, count);
    // Ours, as a runtime that asks the kernel itself finds it.
    const sighandler_t there = kernel_handler(SIGUSR1);
    EXPECT(there != count);
    std::memcpy(&before, &there, sizeof before);
    set_past_curb(SIGUSR1, [](int signal) { before(signal, nullptr, nullptr); });
    send_and_see_the_release();
    EXPECT_EQ(handled.load(), 1);
    // Set back through libc, it is where it was, and not behind itself.
    struct sigaction action {};
    action.sa_sigaction = before;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGUSR1, &action, nullptr);
    send_and_see_the_release();
    EXPECT_EQ(handled.load(), 2);
    EXPECT(handler_told(SIGUSR1) == count);
    // What the program has set past us is what its next handler replaces.
    set_past_curb(SIGUSR1, count_other);
    EXPECT(signal(SIGUSR1, count) == static_cast<sighandler_t>(count_other));
    send_and_see_the_release();
    EXPECT_EQ(handled.load(), 3);
}
