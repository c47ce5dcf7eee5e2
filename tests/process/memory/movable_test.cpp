// Memory that curb can move, because the policy has naps.

#include "families_tried.hpp"
#include "job.hpp"

namespace {

constexpr auto kNaps = R"({ "version": 1, "suspend": { "idle": "1h" }, "gpu": { "*": { "cap": "1GiB" } } })";

const std::string kProgram = tested::kBuild + "/tests/movable_scenarios";

}  // namespace

TEST_CASE("the program's handles are curb's, and mean what the driver's would") {
    const std::string scenario = GENERATE("a_handle_stays_the_same_through_retain_release_and_two_mappings",
                                          "each_call_that_takes_a_handle_reaches_the_driver_with_its_own",
                                          "threads_that_map_and_release_the_same_memory_leave_nothing");
    CAPTURE(scenario);
    succeeds(Job().policy(kNaps).run(scenario, kProgram));
}

TEST_CASE("each family of memory is held to the cap and comes back where the policy has naps") {
    for (const char *family : families_under_a_small_cap()) {
        CAPTURE(family);
        succeeds(Job()
                     .policy(kNaps)
                     .with("FAMILY", family)
                     .with("BLOCKS", "1")
                     .run("a_family_of_memory_is_held_to_the_cap_and_comes_back"));
    }
}

TEST_CASE("a block of cuMemAlloc that curb makes behaves as the driver's") {
    const std::string scenario =
        GENERATE("a_block_is_charged_refused_and_freed_as_memory_of_the_driver",
                 "a_free_of_a_block_waits_for_the_work_of_its_context",
                 "a_block_is_refused_during_a_capture_as_the_driver_refuses",
                 "a_free_of_a_block_in_a_stream_leaves_the_capture_of_another_alone",
                 "a_query_behind_a_block_fails_and_writes_nothing",
                 "a_second_device_reaches_blocks_that_were_there_and_new_ones",
                 "where_virtual_memory_fails_the_driver_serves_the_request",
                 "a_block_that_the_driver_does_not_free_stays_as_it_is", "a_fork_child_leaves_the_blocks_alone");
    CAPTURE(scenario);
    succeeds(Job().policy(kNaps).with("CURB_SIM_GPUS", "2").run(scenario, kProgram));
}

TEST_CASE("blocks end with their context") {
    succeeds(
        Job()
            .policy(R"({ "version": 1, "suspend": { "when_others_wait": "1h" }, "gpu": { "*": { "cap": "8GiB" } } })")
            .run("blocks_end_with_their_context", kProgram));
}

TEST_CASE("freed blocks are kept as the driver's are") {
    succeeds(Job()
                 .policy(R"({ "version": 1, "suspend": { "idle": "1h" },
                              "gpu": { "*": { "cap": "1GiB", "cache": { "max": "64MiB" } } } })")
                 .run("kept_blocks_serve_again_and_go_back_to_the_device", kProgram));
}

TEST_CASE("curb makes no blocks without light naps, nor for one of several ranks") {
    const auto [policy, variable] = GENERATE(table<const char *, const char *>(
        {{R"({ "version": 1 })", "UNUSED"},
         {R"({ "version": 1, "suspend": { "idle": "1h", "light": false } })", "UNUSED"},
         {kNaps, "WORLD_SIZE"},
         {kNaps, "OMPI_COMM_WORLD_SIZE"}}));
    CAPTURE(policy, variable);
    succeeds(Job()
                 .policy(policy)
                 .with(variable, "2")
                 .with("RANK", "0")
                 .with("OMPI_COMM_WORLD_RANK", "0")
                 .run("large_requests_call_the_drivers_own_allocation", kProgram));
}
