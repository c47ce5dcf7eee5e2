// libcurb.so with a cache, in front of real processes on the simulated driver: which freed blocks serve which requests,
// and what makes the cache give them up.

#include "job.hpp"

namespace {

Job &with_cache(Job &job, const std::string &more = "") {
    return job.policy(R"({ "version": 1, "gpu": { "*": { "cap": "1GiB", "cache": { "max": "256MiB" } } })" + more +
                      "}");
}

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
    Job job;
    succeeds(with_cache(job).run(scenario));
}

TEST_CASE("a block is not handed out before the device has finished with it") {
    const std::string scenario = GENERATE("a_block_is_kept_only_when_the_device_has_finished_with_it",
                                          "work_of_the_blocks_context_alone_is_waited_for");
    CAPTURE(scenario);
    Job job;
    succeeds(job.policy(R"({ "version": 1, "gpu": { "*": { "cache": { "max": "256MiB" } } } })").run(scenario));
}

TEST_CASE("kept blocks belong to their context and end with it") {
    const std::string scenario = GENERATE("kept_blocks_go_with_their_context", "a_block_serves_its_own_context_alone",
                                          "a_context_is_not_destroyed_under_a_block_that_is_being_given_up",
                                          "a_context_that_is_made_again_while_it_is_waited_for_has_its_cache");
    CAPTURE(scenario);
    Job job;
    succeeds(job.policy(R"({ "version": 1, "gpu": { "*": { "cap": "4GiB", "cache": { "max": "256MiB" } } } })")
                 .run(scenario));
}

TEST_CASE("each device has a cache of its own, and one whose memory another reaches has none") {
    Job job;
    succeeds(job.with("CURB_SIM_GPUS", "2")
                 .policy(R"({ "version": 1, "gpu": { "cuda:0": { "cache": { "max": "64MiB" } } } })")
                 .run("each_device_has_its_own_cache"));
}

TEST_CASE("an error of the driver keeps nothing, and comes through") {
    Job first, second;
    succeeds(with_cache(first)
                 .with("CURB_SIM_FAULT", "cuCtxSynchronize:1:700,cuCtxSynchronize:2:700,cuMemFree_v2:2:700")
                 .run("nothing_is_kept_when_the_driver_reports_an_error"));
    succeeds(with_cache(second)
                 .with("CURB_SIM_FAULT", "cuMemFree_v2:1:700,cuMemFree_v2:2:700")
                 .run("a_kept_block_that_the_driver_will_not_free_stays_kept"));
}

TEST_CASE("what the driver has done under an error of earlier work is not done once more") {
    Job job;
    succeeds(job.policy(R"({ "version": 1, "gpu": { "*": { "cap": "4GiB", "cache": { "max": "256MiB" } } } })")
                 .run("nothing_is_done_twice_that_has_been_done_once"));
}

TEST_CASE("the end of a context takes no longer for the blocks that are kept for another") {
    Job job;
    succeeds(job.policy(R"({ "version": 1, "gpu": { "*": { "cache": { "max": "4GiB" } } } })")
                 .run("a_context_ends_beside_anothers_kept_blocks"));
}

TEST_CASE("a device that is full is a reason to give the cache up, also where nothing is capped") {
    Job job;
    succeeds(job.with("CURB_SIM_MEMORY", "1200MiB")
                 .policy(R"({ "version": 1, "gpu": { "*": { "cache": { "max": "256MiB" } } } })")
                 .run("kept_blocks_go_when_the_device_is_full"));
}

TEST_CASE("kept blocks go before a growth step, whatever else is released before it") {
    const std::string before = GENERATE("true", "false");
    Job job;
    const Outcome outcome =
        job.policy(R"({ "version": 1, "log": { "level": "info" }, "release": { "before_growth": )" + before + R"( },
                        "gpu": { "*": { "cap": "4GiB", "cache": { "max": "256MiB" },
                                        "growth": { "start": "1GiB", "step": "512MiB" } } } })")
            .run("kept_blocks_go_before_the_allowance_grows");
    succeeds(outcome);
    CHECK_THAT(outcome.err, !contains("may now hold"));
}

TEST_CASE("a release says what the cache gave back, and the books what is cached") {
    Job job;
    const Outcome outcome = with_cache(job, R"(, "log": { "level": "info" })").run("a_release_gives_the_cache_back");
    succeeds(outcome);
    CHECK_THAT(outcome.err, contains("cache 256 MiB") && contains(", cached 0; the device says"));
    Job kept;
    const std::string log = (kept.folder() / "curb.log").string();
    succeeds(
        with_cache(kept, R"(, "release": { "steps": ["pools"] }, "log": { "level": "info", "file": ")" + log + "\" }")
            .with("LOG", log)
            .run("a_release_without_that_step_leaves_the_cache"));
}
