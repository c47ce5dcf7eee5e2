// Memory that curb can move, because the policy has naps.

#include "families_tried.hpp"
#include "job.hpp"

namespace {

constexpr auto kNaps = R"({ "version": 1, "suspend": { "idle": "1h" }, "gpu": { "*": { "cap": "1GiB" } } })";

}  // namespace

TEST_CASE("the program's handles are curb's, and mean what the driver's would") {
    const std::string scenario = GENERATE("a_handle_stays_the_same_through_retain_release_and_two_mappings",
                                          "each_call_that_takes_a_handle_reaches_the_driver_with_its_own",
                                          "threads_that_map_and_release_the_same_memory_leave_nothing",
                                          "mapped_memory_is_held_by_references_and_mappings");
    CAPTURE(scenario);
    succeeds(Job().policy(kNaps).run(scenario));
}

TEST_CASE("each family of memory is held to the cap and comes back where the policy has naps") {
    for (const char *family : families_under_a_small_cap()) {
        CAPTURE(family);
        succeeds(
            Job().policy(kNaps).with("FAMILY", family).run("a_family_of_memory_is_held_to_the_cap_and_comes_back"));
    }
}
