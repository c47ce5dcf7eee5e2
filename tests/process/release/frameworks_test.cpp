// The release steps "frameworks" and "pressure": Python programs with stand-ins for the frameworks, and C++ programs
// with stand-ins for PyTorch's allocator and the CUDA runtime.

#include <deque>

#include "job.hpp"

namespace {

class Program {
  public:
    explicit Program(const std::string &release = "{}") {
        job.policy(R"({ "version": 1, "log": { "level": "info", "file": "curb.log" }, "release": )" + release + " }")
            .in_its_folder()
            .with("PYTHONPATH", tested::kPythonPrograms + "/stand_ins")
            .with("PYTHONDONTWRITEBYTECODE", "1")
            .with("ASAN_OPTIONS", "detect_leaks=0");  // of Python itself
    }
    Begun begin(const std::string &name) {
        return job.begin_command({tested::kPython, tested::kPythonPrograms + "/scenarios.py", name});
    }
    Outcome run(const std::string &name) { return begin(name).end(); }
    Job job;
};

}  // namespace

TEST_CASE("a release asks the frameworks that are loaded and have a cache, and nothing that they do harms it",
          "[foreign]") {
    struct Case {
        const char *scenario;
        const char *gpus = "1", *release = "{}";
    };
    const Case cases[] = {
        {"a_lock_that_is_held_for_long_holds_up_neither_the_plan_nor_the_next_step"},
        {"every_framework_gives_back_on_every_device_that_is_used", "3"},
        {"a_device_whose_context_is_gone_is_left_alone", "2"},
        {"nothing_is_imported"},
        {"memory_that_the_program_frees_meanwhile_is_its_own"},
        {"a_framework_that_is_being_imported_is_not_asked"},
        {"pytorch_on_another_allocator_is_not_asked"},
        {"a_release_during_a_capture_leaves_frameworks_for_later"},
        {"garbage_is_not_collected_otherwise"},
        {"garbage_is_collected_and_every_pool_found_when_the_policy_says_so", "1", R"({ "collect": true })"},
        {"an_exception_of_a_framework_is_reported_and_the_others_are_asked"},
        {"one_release_right_after_the_other_is_not_deferred"},
        {"a_module_of_a_sub_interpreter_alone_is_not_touched"},
        {"nobody_is_asked_while_the_interpreter_ends"},
        {"a_fork_child_is_asked_nothing_and_ends_at_once"},
    };
    // The first one mostly waits, so the others run meanwhile.
    Program waits;
    Begun first = waits.begin(cases[0].scenario);
    for (const Case &one : cases) {
        CAPTURE(one.scenario);
        if (&one == cases) continue;
        Program program(one.release);
        program.job.with("CURB_SIM_GPUS", one.gpus);
        succeeds(program.run(one.scenario));
    }
    INFO(cases[0].scenario);
    succeeds(first.end());
}

TEST_CASE("the interpreter does not end before the frameworks that are being asked have answered", "[foreign]") {
    Program program;
    succeeds(program.run("the_end_of_the_interpreter_waits_for_frameworks_that_are_asked"));
    CHECK(fs::exists(program.job.folder() / "answered"));
    CHECK(contents(program.job.folder() / "ends") == "False");  // exit had begun before the answer
}

// ---- pressure ----

namespace {

Job &pressing(Job &job, const std::string &more = "") {
    return job.policy(R"({ "version": 1, "log": { "level": "info", "file": "curb.log" })" + more + " }")
        .in_its_folder();
}

}  // namespace

TEST_CASE("one allocation of PyTorch or CuPy is refused so that it gives its cache back, and no other request") {
    const char *const scenarios[] = {"pytorch_is_refused_once_and_gives_back",
                                     "a_segment_that_pytorch_maps_is_refused_once",
                                     "a_pool_of_cupy_is_refused_once_and_gives_back",
                                     "other_callers_are_served",
                                     "no_request_is_refused_while_a_graph_is_captured",
                                     "a_process_that_has_made_a_pool_is_left_alone",
                                     "a_process_that_has_made_a_pool_for_graphs_is_left_alone",
                                     "a_refusal_that_nothing_used_is_forgotten",
                                     "the_second_attempt_is_served_however_long_it_takes_to_come",
                                     "a_thread_that_ends_without_a_second_attempt_is_not_waited_for",
                                     "under_a_storm_of_signals_no_thread_ever_fails"};
    std::deque<Job> jobs;
    std::vector<Begun> begun;  // all at once: they mostly wait
    for (const char *scenario : scenarios)
        begun.push_back(pressing(jobs.emplace_back()).begin(scenario, tested::kPressureScenarios));
    for (std::size_t i = 0; i < begun.size(); ++i) {
        CAPTURE(scenarios[i]);
        succeeds(begun[i].end());
    }
}

TEST_CASE("PyTorch's cache comes back before a growth step, unless the policy says otherwise") {
    const std::string growth = R"(, "gpu": { "*": { "cap": "8GiB", "growth": { "start": "1GiB", "factor": 2 } } })";
    const std::string comes_back = "a_cache_comes_back_before_a_growth_step";
    for (const std::string &scenario :
         {comes_back, std::string("a_growth_step_that_is_needed_is_taken_by_the_second_attempt")}) {
        Job job;
        succeeds(pressing(job, growth).run(scenario, tested::kPressureScenarios));
    }
    for (const char *release : {R"("before_growth": false)", R"("steps": ["pools", "frameworks"])"}) {
        Job job;
        pressing(job, growth + R"(, "release": { )" + release + " }").with("GROWS_FIRST", "1");
        succeeds(job.run(comes_back, tested::kPressureScenarios));
    }
}

TEST_CASE("no request of PyTorch is refused when PyTorch has just been asked through Python", "[foreign]") {
    const std::string scenario = "what_was_asked_is_not_pressed";
    Program program;
    program.job.with("C10_CUDA", tested::kC10Cuda);
    succeeds(program.run(scenario));
    Program alone(R"({ "steps": ["pressure"] })");
    alone.job.with("C10_CUDA", tested::kC10Cuda).with("ALONE", "1");
    succeeds(alone.run(scenario));
}
