// Runs programs under libcurb.so on the simulated driver, as a user would. Each exits with 1 if something is wrong.

#include <chrono>
#include <deque>

#include "families_tried.hpp"
#include "job.hpp"

TEST_CASE("each family of memory is held to the cap and comes back") {
    for (const char *family : families_under_a_small_cap()) {
        CAPTURE(family);
        succeeds(Job().cap("1GiB").with("FAMILY", family).run("a_family_of_memory_is_held_to_the_cap_and_comes_back"));
    }
}

TEST_CASE("a request that does not fill its granules needs room for all of them") {
    const std::string family = GENERATE("plain", "pitch", "managed", "array");
    CAPTURE(family);
    succeeds(
        Job().cap("1026MiB").with("FAMILY", family).run("a_request_for_a_part_of_a_granule_needs_room_for_all_of_it"));
}

TEST_CASE("each family of memory is held to the cap, with books that agree with the driver's") {
    const std::string scenario = GENERATE(
        "stream_ordered_memory_stops_at_the_cap",
        "frees_that_the_host_has_not_seen_complete_are_waited_for_before_a_refusal",
        "a_pool_whose_idle_memory_is_in_pieces_grows_only_within_the_cap",
        "threads_share_the_idle_memory_of_a_pool_that_cannot_grow",
        "growth_of_a_pool_that_is_undone_during_a_capture_does_not_pile_up",
        "pool_memory_that_came_back_unseen_is_not_lost_to_the_cap", "mapped_memory_is_held_by_references_and_mappings",
        "arrays_are_charged_as_the_driver_backs_them", "small_arrays_share_granules_and_stop_at_the_cap",
        "arrays_that_are_mapped_later_are_not_charged", "a_graph_that_keeps_its_memory_is_launched_again_at_the_cap",
        "a_graph_without_memory_is_uploaded_as_it_is_instantiated", "a_captured_graph_is_charged_when_it_is_launched",
        "a_stack_is_charged_for_every_resident_thread", "local_memory_of_a_kernel_is_charged_at_its_launch",
        "a_heap_that_would_not_fit_is_refused_and_room_is_kept_for_one_that_does", "every_form_of_a_context_is_counted",
        "every_form_of_a_launch_is_admitted", "every_form_of_loading_code_is_measured",
        "code_that_is_loaded_is_not_measured_again", "nvml_tells_the_same_as_cuda",
        "senseless_arguments_get_the_drivers_answer_and_leave_the_books",
        "a_graph_that_the_driver_will_not_destroy_is_held_to_the_cap", "pools_without_memory_are_not_asked",
        "the_end_of_a_pool_that_is_being_asked_is_slept_for",
        "pools_that_end_before_their_blocks_are_held_until_those_end",
        "a_library_that_uses_cuda_as_it_is_loaded_waits_for_no_other_thread");
    CAPTURE(scenario);
    succeeds(Job().cap("1GiB").run(scenario));
}

TEST_CASE("a pool far from the cap is asked for its size only now and then, and its memory is charged and capped") {
    const auto [scenario, cap] = GENERATE(table<const char *, const char *>(
        {{"a_pool_that_keeps_its_memory_is_asked_for_its_size_only_now_and_then", "16GiB"},
         {"a_pool_that_is_set_without_curb_is_charged_from_its_first_block", "16GiB"},
         {"a_lowered_cap_holds_for_the_next_request_to_a_pool", "16GiB"},
         {"a_request_ahead_that_is_under_way_does_not_hide_the_drivers_own_memory", "16GiB"},
         {"a_large_request_gets_what_was_reserved_ahead_of_others", "8GiB"},
         {"threads_with_a_pool_that_keeps_its_memory_never_take_more_than_the_cap", "4GiB"}}));
    CAPTURE(scenario);
    succeeds(Job().logged(R"("gpu": { "*": { "cap": ")" + std::string(cap) + R"(" } })").run(scenario));
}

TEST_CASE("an object that has ended is not charged, and the object that gets its handle is") {
    const std::string scenario = GENERATE(
        "a_context_that_ends_while_its_device_is_measured_is_not_held",
        "a_kernel_is_looked_at_again_when_its_context_has_ended",
        "a_pool_that_has_the_handle_of_another_kind_of_pool_is_charged",
        "a_pool_that_could_not_be_destroyed_is_as_it_was", "records_of_destroyed_pools_are_used_again",
        "a_handle_of_host_memory_holds_no_memory_of_the_device",
        "a_pool_with_the_handle_of_one_whose_record_is_of_graphs_now_is_charged", "green_contexts_stop_at_the_cap",
        "a_managed_pool_that_ends_before_its_blocks_is_charged_until_they_are_freed",
        "what_is_freed_in_a_stream_is_no_room_until_the_driver_has_it_back");
    const std::string nvml = GENERATE("", "nopids");
    CAPTURE(scenario, nvml);
    succeeds(Job().cap("1GiB").with("CURB_SIM_NVML", nvml).run(scenario));
}

TEST_CASE("each of these programs confirms its name") {
    struct Case {
        const char *scenario;
        Environment environment;
    };
    const auto one =
        GENERATE(Case{"without_a_policy_nothing_is_changed", {}},
                 Case{"memory_is_charged_where_it_lives", {{"CURB_CAP", "1GiB"}, {"CURB_SIM_GPUS", "2"}}},
                 Case{"a_default_pool_is_charged_to_its_device_whichever_is_current",
                      {{"CURB_CAP", "1GiB"}, {"CURB_SIM_GPUS", "2"}}},
                 Case{"the_form_of_32_bits_makes_no_context_and_frees_nothing_for_it", {{"CURB_CAP", "2GiB"}}},
                 Case{"memory_of_a_context_with_the_handle_of_a_green_one_goes_with_it", {{"CURB_CAP", "2GiB"}}},
                 Case{"a_release_that_is_delayed_refuses_no_request", {{"CURB_CAP", "1GiB"}}},
                 Case{"errno_is_the_programs_own", {{"CURB_CAP", "1GiB"}}},
                 Case{"threads_never_take_more_than_the_cap_together", {{"CURB_CAP", "1GiB"}}},
                 Case{"a_fork_child_passes_and_the_parent_goes_on", {{"CURB_CAP", "1GiB"}}},
                 Case{"a_fork_child_waits_for_nothing_that_its_parents_threads_were_doing", {{"CURB_CAP", "1GiB"}}},
                 Case{"threads_that_wait_for_nvml_share_its_answers", {{"CURB_CAP", "1GiB"}}},
                 Case{"where_nvml_cannot_see_the_process_the_first_free_in_a_stream_is_credited",
                      {{"CURB_CAP", "1GiB"}, {"CURB_SIM_NVML", "nopids"}}},
                 Case{"pools_that_grow_while_two_threads_find_them_empty_are_still_credited",
                      {{"CURB_CAP", "1GiB"}, {"CURB_SIM_NVML", "nopids"}}},
                 Case{"a_pool_with_the_record_of_one_that_ended_while_it_was_read_is_credited",
                      {{"CURB_CAP", "1GiB"}, {"CURB_SIM_NVML", "nopids"}}});
    CAPTURE(one.scenario);
    succeeds(Job().with(one.environment).run(one.scenario));
}

TEST_CASE("the device itself can be reported instead of the cap") {
    succeeds(Job()
                 .policy(R"({ "version": 1, "gpu": { "*": { "cap": "1GiB", "report": "device" } } })")
                 .run("the_device_itself_is_reported_where_the_policy_says_so"));
}

TEST_CASE("an object that gets the handle of one that another thread is ending is charged once") {
    const std::string scenario = GENERATE("an_array_beside_the_end_of_another_context_is_charged_once",
                                          "a_context_with_the_handle_of_one_that_ends_is_charged",
                                          "a_primary_context_that_is_made_again_while_it_ends_is_charged");
    const std::string nvml = GENERATE("", "nopids");
    CAPTURE(scenario, nvml);
    succeeds(Job().cap("2GiB").with("CURB_SIM_NVML", nvml).run(scenario));
}

TEST_CASE("first contexts that are made at once are measured one by one") {
    // How much they overlap is a matter of luck.
    for (int round = 0; round < 3; ++round)
        succeeds(Job()
                     .cap("8GiB")
                     .with("CURB_SIM_LATENCY", "h100")
                     .run("first_contexts_that_are_made_at_once_cost_what_one_does"));
    succeeds(Job()
                 .cap("800MiB")
                 .with("CURB_SIM_LATENCY", "h100")
                 .run("threads_that_retain_the_first_primary_context_at_once_share_it"));
}

TEST_CASE("no thread keeps a first context that the cap refuses") {
    const std::string nvml = GENERATE("", "nopids");
    CAPTURE(nvml);
    const Outcome refused = succeeds(Job()
                                         .cap("400MiB")
                                         .with("CURB_SIM_NVML", nvml)
                                         .with("CURB_SIM_LATENCY", "h100")
                                         .run("threads_that_make_a_first_context_above_the_cap_are_all_refused"));
    CHECK_THAT(refused.err, !contains(" 0 B "));
    succeeds(Job()
                 .cap("400MiB")
                 .with("CURB_SIM_NVML", nvml)
                 .run("a_refused_context_that_the_driver_does_not_destroy_is_held"));
}

TEST_CASE("the driver's own errors come through, and memory that it does not free stays charged") {
    const std::string nvml = GENERATE("", "nopids");  // without NVML no measurement makes up for a lost charge
    CAPTURE(nvml);
    succeeds(Job()
                 .cap("1GiB")
                 .with("CURB_SIM_NVML", nvml)
                 .with("CURB_SIM_FAULT",
                       "cuMemAlloc_v2:1:999,cuMemFree_v2:1:700,cuMemCreate:1:801,cuMemRelease:1:999,"
                       "cuMemAllocAsync:1:101")
                 .run("the_drivers_own_errors_come_through_and_the_books_balance"));
}

TEST_CASE("a green context does not count as a part of the context that comes with it") {
    const std::string nvml = GENERATE("", "nopids");
    CAPTURE(nvml);
    succeeds(Job()
                 .cap("2GiB")
                 .with("CURB_SIM_NVML", nvml)
                 .run("a_first_context_that_comes_with_a_green_one_costs_what_others_do"));
}

TEST_CASE("a context that the cap or a limit of growth has no room for is refused, and reported as one") {
    const Outcome outcome = succeeds(Job().cap("256MiB").run("a_cap_smaller_than_a_context_refuses_the_context"));
    CHECK_THAT(outcome.err,
               contains("refused a context on cuda:0: it takes 518 MiB by itself, and the cap is 256 MiB"));
    const Outcome grown = Job()
                              .policy(R"({ "version": 1, "gpu": { "*": { "growth": { "keep_free": "80GiB" } } } })")
                              .run("a_cap_smaller_than_a_context_refuses_the_context");
    CHECK_THAT(grown.err, contains("refused a context of 518 MiB on cuda:0: the device would have less than 80 GiB"));
}

TEST_CASE("a key of the policy finds its GPU, in whatever order the process sees them") {
    const std::string key =
        GENERATE("nvml:1", "0000:11:00.0", "11:00.0", "GPU-c07b513d-0000-4000-8000-000000000001", "cuda:0");
    const std::string order = GENERATE("1,0", "GPU-c07b513d-0000-4000-8000-000000000001,0");
    CAPTURE(key, order);
    succeeds(Job()
                 .with("CURB_SIM_GPUS", "2")
                 .with("CURB_SIM_MACHINE", "0")
                 .with("CUDA_VISIBLE_DEVICES", order)
                 .policy(R"({ "version": 1, "gpu": { "*": { "cap": "1GiB" }, ")" + key + R"(": { "cap": "2GiB" } } })")
                 .run("a_key_finds_its_gpu"));
}

TEST_CASE("a key that names no GPU is reported if it leaves a GPU without a cap") {
    const auto run = [](const std::string &gpus) {
        return Job().policy(R"({ "version": 1, "gpu": { )" + gpus + " } }").run("a_quiet_run");
    };
    const Outcome typo = succeeds(run(R"("GPU-00000000": { "cap": "1GiB" })"));
    CHECK_THAT(typo.err, contains("GPU-00000000") && contains("GPU-c07b513d"));
    const Outcome shared = succeeds(run(R"("*": { "cap": "1GiB" }, "nvml:7": { "cap": "2GiB" })"));
    CHECK(shared.err.empty());
}

TEST_CASE("an instance of a GPU in MIG mode is found by its own name and by its GPU's") {
    const std::string key = GENERATE("MIG-317b513d-0000-4000-8000-000000000000", "MIG-317b", "GPU-c07b513d");
    CAPTURE(key);
    succeeds(Job()
                 .with("CURB_SIM_MIG", "1")
                 .with("CURB_SIM_MACHINE", "0")
                 .policy(R"({ "version": 1, "gpu": { ")" + key + R"(": { "cap": "1GiB" } } })")
                 .run("a_key_finds_its_mig_instance"));
}

TEST_CASE("a program without CUDA has no thread, no descriptor, no handler and no cuInit of curb's", "[bare]") {
    const Outcome outcome = succeeds(Job().cap("1GiB").run("a_program_without_cuda_stays_one", tested::kNoCuda));
    CHECK(outcome.err.empty());
}

TEST_CASE("nothing starts before the first cuInit", "[bare]") {
    succeeds(Job().run("nothing_starts_before_the_first_cuinit"));
}

TEST_CASE("a release says in one line what each step gave back") {
    const Outcome outcome =
        succeeds(Job().policy(R"({ "version": 1, "log": { "level": "info" } })").run("usr1_trims_what_pools_keep"));
    CHECK_THAT(outcome.err, contains("released 256 MiB") && contains("pools 256 MiB") && contains("no Python"));
    CHECK_THAT(outcome.err, contains("books: cuda:0 holds") && contains("the device says"));
    CHECK(lines(outcome.err).size() == 2);
}

TEST_CASE("a release that runs when the program ends is measured to its end") {
    const Outcome outcome = succeeds(
        Job().policy(R"({ "version": 1, "log": { "level": "info" } })").run("ends_while_a_release_trims_a_pool"));
    CHECK_THAT(outcome.err, contains("released 256 MiB"));
}

constexpr const char *kOneGiB = R"({ "version": 1, "gpu": { "*": { "cap": "1GiB" } } })";

TEST_CASE("an edited policy is in force within a second, and a bad one never") {
    const Outcome outcome = succeeds(Job().policy(kOneGiB).run("an_edit_is_in_force_within_a_second"));
    CHECK_THAT(outcome.err, contains(": new policy in force"));
    CHECK_THAT(outcome.err, contains("the last good policy stays in force"));
}

TEST_CASE("a relative CURB_POLICY is relative to the folder where the program was started") {
    succeeds(Job()
                 .policy(kOneGiB)
                 .with("CURB_POLICY", "job.json")
                 .in_its_folder()
                 .run("a_relative_policy_is_the_one_beside_the_start"));
}

TEST_CASE("an invalid policy refuses every allocation, and curb reports the reason once") {
    const Outcome file = succeeds(Job()
                                      .policy("{ \"version\": 1,\n  \"gpus\": {} }")
                                      .run("a_policy_that_cannot_be_used_refuses_every_allocation"));
    CHECK_THAT(file.err, contains("gpu"));
    CHECK(count(file.err, "job.json:2:3") == 1);
    CHECK(count(file.err, "the policy cannot be used") == 1);
    succeeds(Job().policy("{").cap("1GiB").run("a_mended_policy_is_still_narrowed"));
    const Outcome cap = succeeds(Job().cap("8Gib").run("a_policy_that_cannot_be_used_refuses_every_allocation"));
    CHECK_THAT(cap.err, contains("CURB_CAP"));
}

TEST_CASE("curb prints nothing until the first refusal, then its figures, and at the end the number of refusals") {
    const Outcome quiet = succeeds(Job().cap("1GiB").run("a_quiet_run"));
    CHECK(quiet.err.empty());
    const Outcome refused = succeeds(Job().cap("1GiB").run("one_refusal_is_said_once"));
    CHECK(lines(refused.err).size() == 2);
    CHECK_THAT(refused.err,
               contains("refused 900 MiB on cuda:0: 518 MiB of the cap of 1 GiB is held, 128 MiB more is kept free for "
                        "code that the driver loads (held: context and code 518 MiB). The program sees "
                        "CUDA_ERROR_OUT_OF_MEMORY. To allow it: raise the cap: curb cap ") &&
                   contains(" 1792MiB, or next time curb run --cap 1792MiB (CURB_CAP)\n") && !contains(" 0 B"));
    CHECK_THAT(lines(refused.err).back(),
               contains("refused 100 requests, the last at ") && contains(": 900 MiB, by the cap"));
    // Neither a fork child nor a program that ends by _exit sums up.
    for (const char *end : {"fork", "_exit"}) {
        CAPTURE(end);
        const Outcome ended = succeeds(Job().cap("1GiB").with("END", end).run("ends_after_refusals"));
        CHECK(count(ended.err, "refused 2 requests") == (std::string(end) == "_exit" ? 0 : 1));
    }
}

// [kernel]: ThreadSanitizer reports exit() in a handler.
TEST_CASE("the sum of what was refused waits for no lock of a thread that ends the program in a handler", "[kernel]") {
    const Outcome ended = succeeds(Job().cap("1GiB").with("END", "signal").run("ends_after_refusals"));
    CHECK(count(ended.err, "refused 2 requests") == 1);
}

TEST_CASE("a thread that is cancelled while curb waits or logs ends alone") {
    succeeds(Job()
                 .logged(R"("gpu": { "*": { "cap": "1GiB", "growth": { "wait": "1s" } } })")
                 .run("a_thread_that_is_cancelled_while_curb_works_ends_alone"));
}

// ---- NVML that fails ----

constexpr const char *kStillCounts = "where_nvml_cannot_see_the_process_the_context_still_counts";

TEST_CASE("the context is counted where NVML does not list the process, or has figures that no device can have") {
    const std::string nvml = GENERATE("nopids", "nolist", "absurd", "crowd");
    CAPTURE(nvml);
    succeeds(Job().cap("1GiB").with("CURB_SIM_NVML", nvml).run(kStillCounts));
}

TEST_CASE("NVML of a driver before 510 is measured too") {
    const Outcome outcome = succeeds(
        Job().cap("1GiB").with("LD_LIBRARY_PATH", tested::kSim + "/11.4/nvml:" + tested::kSim).run(kStillCounts));
    CHECK_THAT(outcome.err, !contains("NVML"));
}

TEST_CASE("without NVML a context counts 518 MiB, which is reported once") {
    const Outcome outcome = succeeds(Job().cap("1GiB").with("CURB_SIM_NVML", "broken").run(kStillCounts));
    CHECK_THAT(outcome.err, contains("NVML cannot be used: a context on cuda:0 is taken to cost 518 MiB"));
    CHECK(lines(outcome.err).size() == 2);  // and the refusal
}

TEST_CASE("NVML that hangs from the start delays no call for long, and the cap still holds") {
    std::deque<Job> jobs;
    std::map<std::string, Begun> begun;
    for (const std::string call : {"init", "processes", "memory"})
        begun.emplace(
            call,
            jobs.emplace_back().cap("1GiB").with("CURB_SIM_NVML", "hangs:" + call).for_at_most(40).begin(kStillCounts));
    for (auto &[call, one] : begun) {
        CAPTURE(call);
        const Outcome outcome = succeeds(one.end());
        CHECK(count(outcome.err, "NVML does not answer; until it does") == 1);
    }
}

TEST_CASE("NVML that hangs for a while delays no thread for long, and is used again later") {
    Job job;
    succeeds(job.logged(R"("gpu": { "*": { "cap": "1GiB" } })")
                 .run("nvml_that_hangs_delays_no_thread_for_long_and_is_used_again_later"));
    CHECK(count(contents(job.log()), "NVML does not answer; until it does") == 1);
}

TEST_CASE("a process and its child end at once while a thread waits for NVML") {
    const auto begin = std::chrono::steady_clock::now();
    succeeds(Job().cap("1GiB").for_at_most(40).run("a_process_and_its_child_end_while_a_thread_waits_for_nvml"));
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
}

TEST_CASE("NVML that cannot be initialised at first is asked again") {
    succeeds(Job().logged().with("CURB_SIM_NVML", "late").run("nvml_is_asked_again_after_a_failure"));
}
