// The release steps "frameworks" and "pressure": Python programs with stand-ins for the frameworks, and C++ programs
// with stand-ins for PyTorch's allocator and the CUDA runtime.

#include "job.hpp"

namespace {

class Program {
  public:
    explicit Program(const std::string &release = "{}") {
        job.policy(R"({ "version": 1, "log": { "level": "info", "file": "curb.log" }, "release": )" + release + " }")
            .in_its_folder()
            .with("PYTHONPATH", std::string(CURB_PYTHON_PROGRAMS) + "/stand_ins")
            .with("PYTHONDONTWRITEBYTECODE", "1")
            .with("ASAN_OPTIONS", "detect_leaks=0");  // Python's
    }
    Outcome run(const std::string &name) {
        return job.run_command({CURB_PYTHON, std::string(CURB_PYTHON_PROGRAMS) + "/scenarios.py", name});
    }
    Job job;
};

}  // namespace

TEST_CASE("every framework that is loaded gives back, on every device that is used, and makes no context",
          "[foreign]") {
    Program program;
    program.job.with("CURB_SIM_GPUS", "3");
    succeeds(program.run("every_framework_gives_back_on_every_device_that_is_used"));
    Program gone;
    gone.job.with("CURB_SIM_GPUS", "2");
    succeeds(gone.run("a_device_whose_context_is_gone_is_left_alone"));
}

TEST_CASE("frameworks are asked only if they are there and have a cache of their own", "[foreign]") {
    const std::string scenario =
        GENERATE("nothing_is_imported", "a_framework_that_is_being_imported_is_not_asked",
                 "pytorch_on_another_allocator_is_not_asked", "a_release_during_a_capture_leaves_frameworks_for_later");
    CAPTURE(scenario);
    succeeds(Program().run(scenario));
}

TEST_CASE("garbage is collected only if the policy says so", "[foreign]") {
    succeeds(Program().run("garbage_is_not_collected_otherwise"));
    succeeds(
        Program(R"({ "collect": true })").run("garbage_is_collected_and_every_pool_found_when_the_policy_says_so"));
}

TEST_CASE("what a framework raises is told in the log, and the others are asked", "[foreign]") {
    succeeds(Program().run("what_a_framework_raises_is_told_and_the_others_are_asked"));
}

TEST_CASE("a release that follows at once is asked of frameworks too", "[foreign]") {
    succeeds(Program().run("one_release_right_after_the_other_is_not_deferred"));
}

TEST_CASE("a module that only a sub-interpreter has is not touched", "[foreign]") {
    succeeds(Program().run("a_module_of_a_sub_interpreter_alone_is_not_touched"));
}

TEST_CASE("a GIL that is held for long defers the frameworks, and they are asked once it is free", "[foreign]") {
    succeeds(Program().run("a_lock_that_is_held_for_long_holds_up_neither_the_plan_nor_the_next_step"));
}

TEST_CASE("frameworks that are being asked have answered before the interpreter ends, and none is asked then",
          "[foreign]") {
    Program program;
    succeeds(program.run("the_end_of_the_interpreter_waits_for_frameworks_that_are_asked"));
    CHECK(fs::exists(program.job.folder() / "answered"));
    CHECK(contents(program.job.folder() / "ends") == "False");  // it had begun
    succeeds(Program().run("nobody_is_asked_while_the_interpreter_ends"));
}

TEST_CASE("a fork child is asked nothing, and does not wait for the parent's release", "[foreign]") {
    succeeds(Program().run("a_fork_child_is_asked_nothing_and_ends_at_once"));
}

// ---- pressure ----

namespace {

Outcome pressed(const std::string &scenario, const std::string &more = "", const std::string &variable = "UNUSED") {
    Job job;
    return job.policy(R"({ "version": 1, "log": { "level": "info", "file": "curb.log" })" + more + " }")
        .in_its_folder()
        .with(variable, "1")
        .run(scenario, CURB_PRESSURE_SCENARIOS);
}

}  // namespace

TEST_CASE("PyTorch's allocator is refused once, gives back, and is served") {
    succeeds(pressed("pytorch_is_refused_once_and_gives_back"));
    succeeds(pressed("a_segment_that_pytorch_maps_is_refused_once"));
}

TEST_CASE("a pool of CuPy is refused one allocation, gives back what it caches and goes on") {
    succeeds(pressed("a_pool_of_cupy_is_refused_once_and_gives_back"));
}

TEST_CASE("nobody else is ever refused for pressure") { succeeds(pressed("everybody_else_is_served")); }

TEST_CASE("nobody is refused for pressure while PyTorch would not ask again") {
    succeeds(pressed("nobody_is_refused_while_a_graph_is_captured"));
    succeeds(pressed("a_process_that_has_made_a_pool_is_left_alone"));
    succeeds(pressed("a_process_that_has_made_a_pool_is_left_alone", "", "FOR_GRAPHS"));
}

TEST_CASE("a refusal that nothing has used in ten seconds is forgotten") {
    succeeds(pressed("a_refusal_that_nothing_used_is_forgotten"));
}

TEST_CASE("after a refusal the second attempt is served, whatever is asked for meanwhile") {
    const std::string scenario = GENERATE("the_second_attempt_is_served_however_long_it_takes_to_come",
                                          "a_thread_that_ends_without_a_second_attempt_is_not_waited_for",
                                          "under_a_storm_of_signals_no_thread_ever_fails");
    CAPTURE(scenario);
    succeeds(pressed(scenario));
}

TEST_CASE("PyTorch's cache comes back before a growth step, unless the policy says otherwise") {
    const std::string growth = R"(, "gpu": { "*": { "cap": "8GiB", "growth": { "start": "1GiB", "factor": 2 } } })";
    succeeds(pressed("a_cache_comes_back_before_a_growth_step", growth));
    succeeds(pressed("a_growth_step_that_is_needed_is_taken_by_the_second_attempt", growth));
    for (const char *release : {R"("before_growth": false)", R"("steps": ["pools", "frameworks"])"})
        succeeds(pressed("a_cache_comes_back_before_a_growth_step", growth + R"(, "release": { )" + release + " }",
                         "GROWS_FIRST"));
}

TEST_CASE("PyTorch is not pressed when it has just been asked through Python", "[foreign]") {
    const std::string scenario = "what_was_asked_is_not_pressed";
    Program program;
    program.job.with("C10_CUDA", CURB_C10_CUDA);
    succeeds(program.run(scenario));
    Program alone(R"({ "steps": ["pressure"] })");
    alone.job.with("C10_CUDA", CURB_C10_CUDA).with("ALONE", "1");
    succeeds(alone.run(scenario));
}
