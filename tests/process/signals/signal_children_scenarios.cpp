// The release signal before curb takes it, while the program ignores it, and in children of every kind. RELEASE_SIGNAL
// as in signal_scenarios.cpp.

#include <spawn.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>

#include "signal_ways.hpp"

using namespace scenario;

namespace {

bool ignored_in_kernel(int signal) {
    struct sigaction action {};
    sigaction(signal, nullptr, &action);
    return action.sa_handler == SIG_IGN;
}

bool died_of(int status, int signal) { return WIFSIGNALED(status) && WTERMSIG(status) == signal; }

// Forks a child with its own memory, without running fork handlers.
pid_t raw_fork() { return static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr)); }

}  // namespace

SCENARIO_NAMED(a_default_that_does_nothing_may_come_at_any_time) {  // SIGURG, SIGWINCH
    kill(getpid(), release_signal());                               // before the first cuInit, without a handler
    start();
    send_and_see_the_release();
    EXPECT_EQ(status_of_child([] { raise(release_signal()); }), 0);
}

SCENARIO_NAMED(before_the_first_cuinit_the_signal_is_the_programs) {
    EXPECT(died_of(status_of_child([] { raise(SIGUSR1); }), SIGUSR1));
    signal(SIGUSR1, count);
    raise(SIGUSR1);
    EXPECT_EQ(handled.load(), 1);
}

// Exits with the action that the signal has at the start: 0 default, 1 ignored, 2 a handler.
SCENARIO_NAMED(child_tells_the_action_it_was_started_with) {
    const sighandler_t current = current_handler(release_signal());
    _exit(current == SIG_DFL ? 0 : current == SIG_IGN ? 1 : 2);
}

namespace {

constexpr const char *kSelf = "/proc/self/exe";
char *const kTells[] = {const_cast<char *>("scenarios"),
                        const_cast<char *>("child_tells_the_action_it_was_started_with"), nullptr};

// Starts a program in each way there is, and checks the signal's action in it.
void children_find(int action) {
    pid_t child = 0;
    for (const bool raw : {false, true}) {
        child = raw ? raw_fork() : fork();
        if (child == 0) _exit(execv(kSelf, kTells));
        EXPECT_EQ(WEXITSTATUS(status_of(child)), action);
    }
    child = vfork();
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
        edit(std::string(R"({ "version": 1, "release": { "signal": "SIGHUP" }, )") + R"("gpu": { "*": { "cap": ")" +
             cap + R"(" } } })");
        EXPECT(
            within(std::chrono::seconds(10), [&] { return shown_total() == std::strtoull(cap, nullptr, 10) * GiB; }));
    }
    EXPECT(ignored_in_kernel(release_signal()));
    // With a handler of the program's, the signal asks for releases again.
    EXPECT(signal(release_signal(), count) == SIG_IGN);
    kill(getpid(), release_signal());
    EXPECT(pool_came_back());
    EXPECT_EQ(handled.load(), 1);
}

SCENARIO_NAMED(a_child_that_shares_our_memory_leaves_the_parents_handler_alone) {
    start();
    signal(SIGUSR1, count);
    // Python's subprocess resets every handler in a child of vfork, before exec.
    const pid_t child = vfork();
    if (child == 0) {
        struct sigaction action {
        }, current{};
        sigaction(SIGUSR1, nullptr, &current);
        action.sa_handler = SIG_DFL;
        sigaction(SIGUSR1, &action, nullptr);
        _exit(current.sa_handler == count ? 0 : 1);
    }
    EXPECT_EQ(status_of(child), 0);
    EXPECT(current_handler(SIGUSR1) == count);
    send_and_see_the_release();
    EXPECT_EQ(handled.load(), 1);
    // A signal in the child releases nothing, though the child still has the parent's handlers.
    leave_memory_in_the_pool();
    const pid_t raises = vfork();
    if (raises == 0) {
        raise(SIGUSR1);
        _exit(0);
    }
    EXPECT_EQ(status_of(raises), 0);
    EXPECT_EQ(handled.load(), 2);  // the child shares our memory
    EXPECT(!within(std::chrono::milliseconds(100), [] { return curb_sim_held(0) == kContext; }));
}

SCENARIO_NAMED(a_signal_in_a_child_before_its_fork_handlers_have_run_is_the_childs) {
    start();
    leave_memory_in_the_pool();
    const auto handled_in_child = [] {
        raise(SIGUSR1);
        if (handled != 1) _exit(1);
    };
    const auto twice = [=] {
        handled_in_child();
        raise(SIGUSR1);
    };
    EXPECT(died_of(status_of_child([] { raise(SIGUSR1); }, raw_fork), SIGUSR1));
    signal(SIGUSR1, count);
    EXPECT_EQ(status_of_child(handled_in_child, raw_fork), 0);
    sysv_signal(SIGUSR1, count);  // one delivery in each process
    EXPECT(died_of(status_of_child(twice, raw_fork), SIGUSR1));
    EXPECT(!within(std::chrono::milliseconds(100), [] { return curb_sim_held(0) == kContext; }));
    EXPECT(current_handler(SIGUSR1) == count);
    send_and_see_the_release();
    EXPECT_EQ(handled.load(), 1);
}

SCENARIO_NAMED(a_fork_child_and_its_child_have_handlers_of_their_own) {
    start();
    signal(SIGUSR1, count);
    const int status = status_of_child([] {
        raise(SIGUSR1);
        if (handled != 1 || kernel_handler(SIGUSR1) != count) _exit(1);
        if (signal(SIGUSR1, count_other) != count) _exit(2);
        const int of_grandchild = status_of_child([] {
            raise(SIGUSR1);
            if (handled_other != 1 || handled != 1) _exit(3);
        });
        signal(SIGUSR1, SIG_DFL);
        if (of_grandchild == 0) raise(SIGUSR1);  // ends it, as it would without curb
    });
    EXPECT(died_of(status, SIGUSR1));
    EXPECT(current_handler(SIGUSR1) == count);
    send_and_see_the_release();
    EXPECT_EQ(handled.load(), 1);
}
