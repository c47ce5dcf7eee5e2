// Releases that curb runs by itself: when idle, above a lowered cap, at the end of a capture.

#include <deque>

#include "job.hpp"

namespace {

constexpr const char *kIdle = R"({ "version": 1, "log": { "level": "info" }, "release": { "idle": "300ms" } })";
constexpr const char *kCapped = R"({ "version": 1, "gpu": { "*": { "cap": "4GiB" } } })";

}  // namespace

TEST_CASE(
    "an idle process gives back what it does not use, once in each idle period; one that uses the GPU is not idle") {
    struct Case {
        const char *scenario, *name, *value;
    };
    // If NVML has no utilisation of the process, curb goes by the process's own calls.
    constexpr const char *kOnce = "an_idle_process_gives_back_once_in_each_idle_period";
    const Case cases[] = {{kOnce, "CURB_SIM_NVML", ""},
                          {kOnce, "CURB_SIM_NVML", "nopids"},
                          {kOnce, "CURB_SIM_NVML", "broken"},
                          {kOnce, "CURB_SIM_MIG", "1"},
                          {"a_release_trims_a_pool_of_managed_memory", "CURB_SIM_NVML", ""},
                          {"a_process_that_uses_the_gpu_is_not_idle", "CURB_SIM_NVML", ""},
                          {"a_process_whose_kernel_runs_on_is_not_idle", "CURB_SIM_NVML", ""}};
    std::deque<Job> jobs;
    std::vector<Begun> begun;  // all at once: they mostly wait
    for (const auto &[scenario, name, value] : cases)
        begun.push_back(jobs.emplace_back().policy(kIdle).with(name, value).begin(scenario));
    for (std::size_t i = 0; i < begun.size(); ++i) {
        CAPTURE(cases[i].scenario, cases[i].name, cases[i].value);
        const Outcome outcome = succeeds(begun[i].end());
        if (cases[i].scenario != kOnce) continue;
        // Twice. A machine that stalls between two of the scenario's calls adds one idle period.
        const auto releases = count(outcome.err, "on idle for 300ms");
        CHECK(releases >= 2);
        CHECK(releases <= 3);
    }
}

TEST_CASE("release.idle can be added while the program runs") {
    succeeds(Job().policy(R"({ "version": 1 })").run("an_edit_makes_a_process_give_back_when_idle"));
}

TEST_CASE("a process above its cap gives pool memory back at its own synchronisation, and keeps its threshold") {
    const std::string scenario = GENERATE("a_process_above_its_cap_gives_back_at_its_own_synchronisation",
                                          "a_pool_that_the_driver_will_not_destroy_keeps_its_threshold",
                                          "a_threshold_set_while_above_the_cap_is_the_programs_afterwards");
    CAPTURE(scenario);
    succeeds(Job().policy(kCapped).run(scenario));
}

TEST_CASE("curb does a postponed release when the capture has ended, whatever became of an earlier capture") {
    const std::string scenario = GENERATE("what_a_capture_postpones_is_done_when_it_has_ended",
                                          "a_forked_stream_that_is_destroyed_ends_no_capture");
    CAPTURE(scenario);
    succeeds(Job().logged().run(scenario));
}

TEST_CASE("a release waits for no capture that has ended, with a cap and without") {
    const bool capped = GENERATE(false, true);
    CAPTURE(capped);
    Job job;
    if (capped) job.cap("2GiB");  // room for two contexts
    succeeds(job.run("a_release_waits_for_no_capture_that_has_ended"));
}
