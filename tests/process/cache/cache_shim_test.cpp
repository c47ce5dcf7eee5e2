// Runs programs under libcurb.so with a cache on the simulated driver. The scenarios are in cache_*_scenarios.cpp.

#include "job.hpp"

namespace {

constexpr const char *kOneGiB = R"("*": { "cap": "1GiB", "cache": { "max": "256MiB" } })";

}  // namespace

TEST_CASE("freed blocks serve later requests of their size, and the books agree with the driver's") {
    const std::string scenario = GENERATE(
        "a_freed_block_is_handed_out_again_without_the_driver", "a_device_that_has_failed_hands_out_no_kept_block",
        "only_a_request_of_exactly_the_same_size_gets_a_kept_block", "only_what_cumemalloc_gave_is_kept",
        "no_more_is_kept_than_the_policy_says_and_the_oldest_goes_first",
        "blocks_that_share_granules_count_by_what_they_keep_from_the_device",
        "memory_within_the_reach_of_others_is_not_kept", "what_is_freed_twice_gets_the_drivers_answer",
        "kept_blocks_go_before_a_request_is_refused", "a_request_that_nothing_would_help_leaves_the_cache_alone",
        "an_edit_of_the_cache_is_in_force_at_once", "nothing_is_kept_or_handed_out_beyond_the_cap",
        "nothing_is_kept_or_handed_out_during_a_capture");
    CAPTURE(scenario);
    succeeds(Job().policy(R"({ "version": 1, "gpu": { )" + std::string(kOneGiB) + " } }").run(scenario));
}

TEST_CASE(
    "curb keeps a block once the device is idle, until its context ends, the driver fails or the device is full") {
    struct Case {
        const char *scenario, *gpu;
        Environment environment{};
    };
    constexpr const char *kUncapped = R"("*": { "cache": { "max": "256MiB" } })";
    constexpr const char *kFourGiB = R"("*": { "cap": "4GiB", "cache": { "max": "256MiB" } })";
    const auto one = GENERATE_COPY(
        Case{"a_block_is_kept_only_when_the_device_has_finished_with_it", kUncapped},
        Case{"work_of_the_blocks_context_alone_is_waited_for", kUncapped},
        Case{"a_block_serves_its_own_context_alone", kFourGiB},
        Case{"a_context_is_not_destroyed_under_a_block_that_is_being_given_up", kFourGiB},
        Case{"a_context_that_is_made_again_while_it_is_waited_for_has_its_cache", kFourGiB},
        Case{"nothing_is_done_twice_that_has_been_done_once", kFourGiB},
        Case{"a_context_ends_beside_anothers_kept_blocks", R"("*": { "cache": { "max": "4GiB" } })"},
        Case{"each_device_has_its_own_cache", R"("cuda:0": { "cache": { "max": "64MiB" } })", {{"CURB_SIM_GPUS", "2"}}},
        Case{"kept_blocks_go_when_the_device_is_full", kUncapped, {{"CURB_SIM_MEMORY", "1200MiB"}}},
        Case{"nothing_is_kept_when_the_driver_reports_an_error",
             kOneGiB,
             {{"CURB_SIM_FAULT", "cuCtxSynchronize:1:700,cuCtxSynchronize:2:700,cuMemFree_v2:2:700"}}},
        Case{"a_kept_block_that_the_driver_will_not_free_stays_kept",
             kOneGiB,
             {{"CURB_SIM_FAULT", "cuMemFree_v2:1:700,cuMemFree_v2:2:700"}}});
    CAPTURE(one.scenario);
    succeeds(Job()
                 .with(one.environment)
                 .policy(R"({ "version": 1, "gpu": { )" + std::string(one.gpu) + " } }")
                 .run(one.scenario));
}

TEST_CASE("kept blocks are freed before a growth step, whatever else is released before it") {
    const std::string before = GENERATE("true", "false");
    Job job;
    const Outcome outcome = succeeds(
        job.policy(R"({ "version": 1, "log": { "level": "info" }, "release": { "before_growth": )" + before + R"( },
                        "gpu": { "*": { "cap": "4GiB", "cache": { "max": "256MiB" },
                                        "growth": { "start": "1GiB", "step": "512MiB" } } } })")
            .run("kept_blocks_go_before_the_allowance_grows"));
    CHECK_THAT(outcome.err, !contains("may now hold"));
}

TEST_CASE("the log has the bytes that a release freed from the cache, and those still kept") {
    const std::string gpu = R"("gpu": { )" + std::string(kOneGiB) + " }";
    Job job;
    succeeds(job.logged(gpu).run("a_release_gives_the_cache_back"));
    CHECK_THAT(contents(job.log()), contains("cache 256 MiB") && contains(", cached 0; the device says"));
    succeeds(Job()
                 .logged(gpu + R"(, "release": { "steps": ["pools"] })")
                 .run("a_release_without_that_step_leaves_the_cache"));
}
