// Many signals at once: from another process, while the policy names another signal, in children, and while the program
// ends.

#include <sched.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>
#include <csignal>

#include "signal_ways.hpp"

using namespace scenario;

namespace {

// Another process, forked before CUDA is used here. After go() it sends SIGUSR1 and SIGUSR2 until it is destroyed.
class Storm {
  public:
    Storm() {
        EXPECT_EQ(pipe(ends_), 0);
        pid_ = fork();
        if (pid_ != 0) return;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        char byte = 0;
        close(ends_[1]);
        const pid_t to = getppid();
        if (read(ends_[0], &byte, 1) != 1) _exit(1);
        while (kill(to, SIGUSR1) == 0 && kill(to, SIGUSR2) == 0) sched_yield();
        _exit(0);
    }
    ~Storm() {
        kill(pid_, SIGKILL);
        waitpid(pid_, nullptr, 0);
    }
    void go() { EXPECT_EQ(write(ends_[1], "g", 1), 1); }

  private:
    int ends_[2]{};
    pid_t pid_ = 0;
};

std::atomic<int> strays{0};
void only_usr1(int signal) { (signal == SIGUSR1 ? handled : strays).fetch_add(1); }
void only_usr2(int signal) { (signal == SIGUSR2 ? handled_other : strays).fetch_add(1); }

}  // namespace

SCENARIO_NAMED(a_storm_through_cuinit_reaches_the_program) {
    signal(SIGUSR1, only_usr1);
    signal(SIGUSR2, only_usr2);
    Storm storm;
    storm.go();
    EXPECT(within(std::chrono::seconds(5), [] { return handled > 0 && handled_other > 0; }));
    start();
    handled = handled_other = 0;
    EXPECT(within(std::chrono::seconds(5), [] { return handled > 0 && handled_other > 0; }));
    EXPECT_EQ(strays.load(), 0);
}

SCENARIO_NAMED(a_storm_while_the_signal_moves_reaches_the_right_handlers) {  // a live policy: SIGUSR1 first
    signal(SIGUSR1, only_usr1);
    signal(SIGUSR2, only_usr2);
    Storm storm;
    start();
    storm.go();
    std::atomic<bool> done{false};
    // The program sets its handlers all the while.
    std::thread setter([&] {
        for (unsigned i = 0; !done; ++i) {
            const Way &way = ways()[i % ways().size()];
            if (way.once) continue;  // it leaves the default action, and the next signal would kill the program
            EXPECT(way.set(SIGUSR1, only_usr1) == static_cast<sighandler_t>(only_usr1));
            EXPECT(way.set(SIGUSR2, only_usr2) == static_cast<sighandler_t>(only_usr2));
            sched_yield();
        }
    });
    for (int i = 0; i < 20; ++i) {
        name_release_signal(i % 2 ? "SIGUSR1" : "SIGUSR2");
        EXPECT(comes_into_force(i % 2 ? SIGUSR1 : SIGUSR2));
        EXPECT(within(std::chrono::seconds(10),
                      [&] { return kernel_handler(i % 2 ? SIGUSR2 : SIGUSR1) == (i % 2 ? only_usr2 : only_usr1); }));
    }
    done = true;
    setter.join();
    EXPECT_EQ(strays.load(), 0);
    EXPECT(handled > 0);
    EXPECT(handled_other > 0);
    EXPECT(current_handler(SIGUSR1) == only_usr1);
    EXPECT(current_handler(SIGUSR2) == only_usr2);
    name_release_signal("none");
    EXPECT(within(std::chrono::seconds(10), [] { return kernel_handler(SIGUSR1) == only_usr1; }));
}

SCENARIO_NAMED(children_forked_while_handlers_are_set_find_one_of_them) {
    start();
    signal(SIGUSR1, count);
    std::atomic<bool> done{false};
    std::thread setter([&] {
        while (!done) {
            signal(SIGUSR1, count_other);
            signal(SIGUSR1, count);
        }
    });
    for (int i = 0; i < 300; ++i) {
        const int status = status_of_child([] {
            const int before = handled + handled_other;
            raise(SIGUSR1);
            signal(SIGUSR1, count);
            raise(SIGUSR1);
            if (handled + handled_other != before + 2 || kernel_handler(SIGUSR1) != count) _exit(1);
        });
        EXPECT_EQ(status, 0);
    }
    done = true;
    setter.join();
}

SCENARIO_NAMED(a_handler_for_one_delivery_runs_once_however_many_come) {
    start();
    constexpr int kRounds = 5'000;
    std::atomic<int> round{0}, raised{0};
    std::thread other([&] {
        for (int i = 1; i <= kRounds; ++i) {
            while (round < i) sched_yield();
            raise(SIGUSR1);
            raised = i;
        }
    });
    for (int i = 1; i <= kRounds; ++i) {
        handled = 0;
        sysv_signal(SIGUSR1, count);
        round = i;  // both threads raise it at nearly the same time
        raise(SIGUSR1);
        while (raised < i) sched_yield();
        EXPECT_EQ(handled.load(), 1);
    }
    other.join();
}

namespace {

struct AtTheVeryEnd {
    bool armed = false;
    ~AtTheVeryEnd() {
        if (!armed) return;
        for (int i = 0; i < 1000; ++i) raise(SIGUSR1);
        if (handled != 3000) _exit(1);
    }
};
AtTheVeryEnd at_the_very_end;

}  // namespace

SCENARIO_NAMED(signals_while_the_program_ends_do_no_harm) {
    at_the_very_end.armed = true;
    const auto signals = [] {
        for (int i = 0; i < 1000; ++i) raise(SIGUSR1);
    };
    std::atexit(signals);
    start();
    signal(SIGUSR1, count);
    std::atexit(signals);
    leave_memory_in_the_pool();
    std::exit(failures == 0 ? 0 : 1);
}
