// The release signal beside the program's own use of signals.

#include <csignal>

#include "job.hpp"

namespace {

// A policy with the default signal, which scenarios edit.
constexpr const char *kUsr1 = R"({ "version": 1, "release": { "signal": "SIGUSR1" } })";

struct Named {
    std::string name;
    int number;
};

Job &on(Job &job, const Named &signal) {
    return job.policy(R"({ "version": 1, "release": { "signal": ")" + signal.name + R"(" } })")
        .with("RELEASE_SIGNAL", std::to_string(signal.number));
}

}  // namespace

TEST_CASE("a handler is kept and called, however and whenever the program sets it, and the release runs", "[kernel]") {
    const std::string way =
        GENERATE("sigaction", "__sigaction", "sigaction once", "one object for both", "signal", "bsd_signal", "ssignal",
                 "sysv_signal", "__sysv_signal", "sigset", "signal and siginterrupt");
    const std::string order = GENERATE("before", "after", "both");
    CAPTURE(way, order);
    succeeds(Job().with("WAY", way).with("ORDER", order).run("a_handler_is_kept_and_the_release_runs"));
}

TEST_CASE("the policy may name other signals, whose handlers are kept too") {
    const Named signal =
        GENERATE(Named{"SIGUSR2", SIGUSR2}, Named{"SIGHUP", SIGHUP}, Named{"SIGWINCH", SIGWINCH},
                 Named{"SIGURG", SIGURG}, Named{"SIGIO", SIGIO}, Named{"SIGPWR", SIGPWR}, Named{"SIGXCPU", SIGXCPU},
                 Named{"SIGRTMIN", SIGRTMIN}, Named{"SIGRTMIN+3", SIGRTMIN + 3}, Named{"SIGRTMIN+30", SIGRTMAX});
    CAPTURE(signal.name);
    const std::string order = GENERATE("before", "after");
    Job job;
    succeeds(
        on(job, signal).with("WAY", "sigaction").with("ORDER", order).run("a_handler_is_kept_and_the_release_runs"));
}

TEST_CASE("handlers run as without curb, in the program, its threads and its children", "[kernel]") {
    const std::string scenario = GENERATE(
        "the_mask_and_the_flags_of_a_handler_hold_while_it_runs",
        "system_calls_are_interrupted_or_go_on_as_the_program_chose",
        "what_siginterrupt_said_outlives_the_signal_being_ours", "sigset_holds_and_lets_go",
        "wrong_arguments_fail_as_without_curb", "a_blocked_signal_comes_when_it_is_let_through",
        "a_handler_for_one_delivery_runs_once_however_many_come",
        "a_child_that_shares_our_memory_leaves_the_parents_handler_alone",
        "a_signal_in_a_child_before_its_fork_handlers_have_run_is_the_childs",
        "a_fork_child_and_its_child_have_handlers_of_their_own",
        "children_forked_while_handlers_are_set_find_one_of_them", "a_handler_that_ends_in_the_one_before_it_ends",
        "a_handler_that_lets_the_one_before_it_run_stays", "a_storm_while_the_signal_moves_reaches_the_right_handlers");
    CAPTURE(scenario);
    succeeds(Job().policy(kUsr1).run(scenario));
}

TEST_CASE("before the first cuInit, in a storm and at its end a program has its signals as without curb") {
    const std::string scenario =
        GENERATE("before_the_first_cuinit_the_signal_is_the_programs", "a_storm_through_cuinit_reaches_the_program",
                 "signals_while_the_program_ends_do_no_harm");
    CAPTURE(scenario);
    succeeds(Job().run(scenario));
}

TEST_CASE(
    "sigwait, signalfd, signals that do nothing by default, and started programs work on each signal as without curb",
    "[kernel]") {
    struct Case {
        const char *scenario;
        Named signal;
    };
    const auto one = GENERATE(Case{"sigwait_and_signalfd_get_every_signal", {"SIGUSR1", SIGUSR1}},
                              Case{"sigwait_and_signalfd_get_every_signal", {"SIGRTMIN+3", SIGRTMIN + 3}},
                              Case{"a_default_that_does_nothing_may_come_at_any_time", {"SIGURG", SIGURG}},
                              Case{"a_default_that_does_nothing_may_come_at_any_time", {"SIGWINCH", SIGWINCH}},
                              Case{"what_a_program_starts_finds_what_it_would_without_curb", {"SIGUSR1", SIGUSR1}},
                              Case{"what_a_program_starts_finds_what_it_would_without_curb", {"SIGHUP", SIGHUP}},
                              Case{"what_a_program_starts_finds_what_it_would_without_curb", {"SIGRTMIN", SIGRTMIN}});
    CAPTURE(one.scenario, one.signal.name);
    Job job;
    succeeds(on(job, one.signal).run(one.scenario));
}

TEST_CASE("a signal that the program ignores stays ignored, which the log says once", "[kernel]") {
    Job job;
    const Outcome outcome = succeeds(on(job, {"SIGHUP", SIGHUP}).run("an_ignored_signal_stays_ignored"));
    CHECK_THAT(outcome.err, contains("ignores SIGHUP") && contains("release.signal"));
    CHECK(count(outcome.err, "ignores SIGHUP") == 1);
}

TEST_CASE("curb leaves a handler alone that the program sets in the kernel itself, and the log says so", "[kernel]") {
    const Outcome outcome = succeeds(Job().policy(kUsr1).run("a_handler_set_by_a_system_call_is_left_alone"));
    CHECK_THAT(outcome.err, contains("bypassed curb and replaced the handler of SIGUSR1"));
    // At the edit of something else, and when the signal is named again.
    CHECK(count(outcome.err, "bypassed curb and replaced the handler") == 2);
}
