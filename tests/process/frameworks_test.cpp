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
    [[nodiscard]] std::string text_of(const char *file) const {
        std::stringstream all;
        all << std::ifstream(job.folder() / file).rdbuf();
        return all.str();
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
    CHECK(program.text_of("ends") == "False");  // it had begun
    succeeds(Program().run("nobody_is_asked_while_the_interpreter_ends"));
}

TEST_CASE("a fork child is asked nothing, and does not wait for the parent's release", "[foreign]") {
    succeeds(Program().run("a_fork_child_is_asked_nothing_and_ends_at_once"));
}
