// Traces of programs under libcurb.so, compared with what the programs did and with the simulated driver's own books.

#include <sys/stat.h>

#include <algorithm>

#include "families_tried.hpp"
#include "job.hpp"
#include "traces.hpp"

namespace {

constexpr std::uint64_t MiB = 1ULL << 20, GiB = 1ULL << 30;

std::string traced(const std::string &gpu) {
    return R"({ "version": 1, "gpu": { "*": { )" + gpu + R"( } }, "trace": { "file": "trace-%p.json" } })";
}

std::vector<fs::path> traces_in(const fs::path &folder) {
    std::vector<fs::path> found;
    for (const auto &entry : fs::directory_iterator(folder))
        if (entry.path().filename().string().starts_with("trace-")) found.push_back(entry.path());
    return found;
}
// Reads the only trace in the folder.
ReadTrace trace_in(const fs::path &folder) {
    const std::vector<fs::path> found = traces_in(folder);
    REQUIRE(found.size() == 1);
    return read_trace(found.front());
}

ReadTrace run(Job &job, const std::string &scenario) {
    succeeds(job.in_its_folder().run(scenario));
    ReadTrace read = trace_in(job.folder());
    CHECK(read.header);
    CHECK(read.rest.empty());
    return read;
}

// Returns the figures of the program's "held N" lines.
std::vector<std::uint64_t> said_held(const std::string &err) {
    std::vector<std::uint64_t> out;
    for (const std::string &line : lines(err))
        if (line.starts_with("held ")) out.push_back(std::stoull(line.substr(5)));
    return out;
}

// True if the trace of threads_trace_as_fast_as_they_can has or counts as missing each of its events. Missing ones can
// also be changes of the overhead, of which there is at most one in 2 ms.
bool all_pairs_are_counted(const ReadTrace &read) {
    const std::uint64_t events = 8 * (tested::has_sanitizer() ? 500 : 20'000) * 2;
    const std::uint64_t counted =
        read.of(What::alloc, Kind::plain).size() + read.of(What::free, Kind::plain).size() + read.missing();
    return counted >= events && counted <= events + (read.missing() == 0 ? 0 : 1000);
}

// Checks the whole trace of a process under a cap of 1 GiB.
void adds_up(const ReadTrace &read) {
    CHECK(read.rest.empty());
    CHECK(read.missing() == 0);
    CHECK(read.of(What::alloc).size() > 0);
    for (const auto &[gpu, books] : books_of(read)) {
        CAPTURE(gpu);
        CHECK(books.sum() == books.held);
        CHECK(books.charges == static_cast<std::int64_t>(books.held));
    }
    // A free has the size of the allocations with its address. (A stack grows several times, and ends at once.)
    std::map<std::pair<Kind, std::uint64_t>, std::int64_t> live;
    for (const Event &event : read.events) {
        const std::pair key{event.kind, event.pointer};
        if (event.what == What::alloc) live[key] += event.bytes;
        if (event.what != What::free || event.pointer == 0) continue;
        CAPTURE(curb::policy::kind_name(event.kind), event.pointer);
        REQUIRE(live.contains(key));
        CHECK(event.bytes == live[key]);
        live.erase(key);
    }
    for (const Event &event : read.of(What::refuse)) {
        CHECK(event.why == curb::policy::Limit::cap);
        CHECK(event.limit == 1 * GiB);
    }
}

}  // namespace

TEST_CASE("the events of a trace add up to curb's books, for each family of memory") {
    const std::string cache = GENERATE(R"()", R"(, "cache": { "max": "256MiB" })");
    for (const char *family : families_under_a_small_cap()) {
        CAPTURE(family, cache);
        Job job;
        job.policy(traced(R"("cap": "1GiB")" + cache)).with("FAMILY", family).in_its_folder();
        const Outcome outcome = job.run("a_family_of_memory_is_held_to_the_cap_and_comes_back");
        if (cache.empty()) succeeds(outcome);  // a cache keeps what the scenario expects to be free
        adds_up(trace_in(job.folder()));
    }
}

TEST_CASE("the events of a trace add up to curb's books") {
    const std::string scenario =
        GENERATE("stream_ordered_memory_stops_at_the_cap", "pool_memory_that_came_back_unseen_is_not_lost_to_the_cap",
                 "mapped_memory_is_held_by_references_and_mappings", "arrays_are_charged_as_the_driver_backs_them",
                 "small_arrays_share_granules_and_stop_at_the_cap", "a_captured_graph_is_charged_when_it_is_launched",
                 "a_stack_is_charged_for_every_resident_thread", "local_memory_of_a_kernel_is_charged_at_its_launch",
                 "every_form_of_a_context_is_counted", "every_form_of_loading_code_is_measured",
                 "senseless_arguments_get_the_drivers_answer_and_leave_the_books", "errno_is_the_programs_own");
    const std::string cache = GENERATE(R"()", R"(, "cache": { "max": "256MiB" })");
    CAPTURE(scenario, cache);
    Job job;
    job.policy(traced(R"("cap": "1GiB")" + cache));
    const Outcome outcome = job.in_its_folder().run(scenario);
    if (cache.empty()) succeeds(outcome);  // some scenarios are about the driver's frees
    adds_up(trace_in(job.folder()));
}

TEST_CASE("devices have their names in the trace of a program that ends at once") {
    Job job;
    job.with("CURB_SIM_GPUS", "2").policy(traced(R"("cap": "1GiB")"));
    const ReadTrace read = run(job, "ends_before_names_are_written");
    REQUIRE(read.header);
    REQUIRE(read.header->gpus.size() == 2);
    for (const auto &gpu : read.header->gpus) CHECK_THAT(gpu.name, contains("H100"));
}

TEST_CASE("a trace has a header, the policy in force, and what the program does until its last destructors") {
    Job job;
    job.with("CURB_SIM_GPUS", "2")
        .with("CURB_SIM_MACHINE", "0")
        .policy(traced(R"("cap": "1GiB", "growth": { "start": "700MiB", "step": "1MiB" })"));
    const ReadTrace read = run(job, "frees_at_the_very_end");
    REQUIRE(read.header);
    CHECK_THAT(read.header->command, contains("scenarios frees_at_the_very_end"));
    REQUIRE(read.header->gpus.size() == 2);
    CHECK(read.header->gpus[1].uuid == "GPU-c07b513d-0000-4000-8000-000000000001");
    CHECK(read.header->gpus[1].total == 80 * GiB);
    REQUIRE(read.events.size() > 2);
    for (int gpu = 0; gpu < 2; ++gpu) {
        const Event &policy = read.events[static_cast<std::size_t>(gpu)];
        CHECK(policy.what == What::policy);
        CHECK(policy.gpu == gpu);
        CHECK(policy.limit == 1 * GiB);
        CHECK(policy.of_kind == 700 * MiB);
        CHECK_THAT(policy.text, contains("job.json"));
    }
    for (const Event &event : read.events) CHECK(event.thread != 0);
    REQUIRE(read.of(What::free, Kind::plain).size() == 1);
    CHECK(read.of(What::free, Kind::plain)[0].bytes == 64 * MiB);
    CHECK(read.counters > 0);
}

TEST_CASE("frees and reuses of kept blocks have no charge in the trace, which shows when the driver frees them") {
    Job job;
    job.policy(traced(R"("cap": "1GiB", "cache": { "max": "256MiB" })"));
    job.in_its_folder();
    const Outcome outcome = job.run("kept_blocks_are_reused");
    REQUIRE(outcome.status == 0);
    const ReadTrace read = trace_in(job.folder());
    const auto taken = read.of(What::alloc, Kind::plain), given = read.of(What::free, Kind::plain),
               gone = read.of(What::books, Kind::plain);
    REQUIRE(taken.size() == 2);
    REQUIRE(given.size() == 2);
    REQUIRE(gone.size() == 1);
    CHECK_FALSE(taken[0].reused);
    CHECK(taken[1].reused);
    CHECK(taken[1].charge == 0);
    CHECK(taken[1].pointer == taken[0].pointer);
    for (const Event &event : given) {
        CHECK(event.reused);
        CHECK(event.charge == 0);
        CHECK(event.of_kind == 64 * MiB);
    }
    CHECK(gone[0].charge == -64 * static_cast<std::int64_t>(MiB));
    CHECK(books_of(read).at(0).held == said_held(outcome.err).back());
}

TEST_CASE("growth steps and waits are in the trace with the limit that caused them") {
    Job job;
    job.policy(
        traced(R"("cap": "3GiB", "growth": { "start": "1GiB", "step": "512MiB", "every": "200ms", "wait": "5s" })"));
    succeeds(job.with("CURB_SIM_STATE", (job.folder() / "machine").string())
                 .with("CURB_SIM_MEMORY", "8GiB")
                 .in_its_folder()
                 .run("a_request_waits_until_a_step_is_due"));
    const ReadTrace read = trace_in(job.folder());
    const auto waits = read.of(What::wait), granted = read.of(What::granted), steps = read.of(What::allowance);
    REQUIRE_FALSE(waits.empty());
    REQUIRE(granted.size() == waits.size());
    for (std::size_t i = 0; i < waits.size(); ++i) {
        CHECK(waits[i].why == curb::policy::Limit::allowance);
        CHECK(granted[i].bytes == waits[i].bytes);
        CHECK(granted[i].duration_ns <= granted[i].ns - waits[i].ns + 20'000'000);
        CHECK(granted[i].duration_ns > 0);
    }
    REQUIRE_FALSE(steps.empty());
    CHECK(steps[0].limit == 1536 * MiB);
    for (std::size_t i = 1; i < steps.size(); ++i) CHECK(steps[i].limit == steps[i - 1].limit + 512 * MiB);
}

TEST_CASE("each step of a release is in the trace, with its cause and what it gave back") {
    Job job;
    job.policy(traced(R"("cap": "1GiB")"));
    const ReadTrace read = run(job, "usr1_trims_what_pools_keep");
    const auto steps = read.of(What::step);
    REQUIRE(steps.size() >= 4);
    CHECK(steps[0].step == curb::policy::Step::cache);
    CHECK(steps[1].step == curb::policy::Step::pools);
    CHECK(steps[1].bytes == 256 * MiB);
    CHECK(steps[1].text == "SIGUSR1");
    CHECK(steps[1].duration_ns > 0);
    CHECK(steps[1].ns > steps[1].duration_ns);
}

TEST_CASE("an event that could not be written in time is counted as missing") {
    Job job;
    job.policy(traced(R"("cap": "4GiB")"));
    const Outcome outcome = job.in_its_folder().run("threads_trace_as_fast_as_they_can");
    REQUIRE(outcome.status == 0);
    if (outcome.err.find(" events or more are missing at its end") != std::string::npos)
        return skip("this machine does not write what a full ring holds within 5 s");
    const ReadTrace read = trace_in(job.folder());
    CHECK(all_pairs_are_counted(read));
    Books books = books_of(read).at(0);
    // The overhead may be too high if the device was last measured while the threads allocated (Ledger::reconcile).
    CHECK(books.held >= said_held(outcome.err).back());
    CHECK(books.held - books.kinds[Kind::overhead] <= said_held(outcome.err).back());
    CHECK(books.sum() == books.held);
    CHECK(read.rest.empty());
}

TEST_CASE("the end of a program waits for its trace while that is written, and says what is missing if it is not") {
    const auto [pause, complete] = GENERATE(table<const char *, bool>({{"100", true}, {"1500", false}}));
    CAPTURE(pause);
    Job job;
    job.policy(traced(R"("cap": "4GiB")"))
        .with("LD_PRELOAD", tested::kLibrary + ":" + tested::kSlowWrites)
        .with("WRITES_TAKE_MS", pause);
    const Outcome outcome = job.in_its_folder().run("threads_trace_as_fast_as_they_can");
    REQUIRE(outcome.status == 0);
    const ReadTrace read = trace_in(job.folder());
    CHECK(all_pairs_are_counted(read) == complete);
    CHECK((said_held(outcome.err).size() == lines(outcome.err).size()) == complete);
    if (!complete) CHECK_THAT(outcome.err, contains(" events or more are missing at its end"));
}

TEST_CASE("a thread that stops within an event does not make others' last events vanish unsaid") {
    Job job;
    job.policy(traced(R"("cap": "4GiB")"));
    const Outcome outcome = job.in_its_folder().run("ends_while_a_thread_is_within_an_event");
    REQUIRE(outcome.status == 0);
    if (outcome.err.find("within an event") == std::string::npos)
        return skip("the thread never stopped within an event");
    std::uint64_t pairs = 0;
    for (const std::string &line : lines(outcome.err))
        if (line.starts_with("rounds ")) pairs = std::stoull(line.substr(7));
    std::uint64_t frees = 0;
    for (const Event &event : trace_in(job.folder()).of(What::free, Kind::plain)) frees += event.bytes == 4 * MiB;
    if (frees < pairs) CHECK_THAT(outcome.err, contains(" events or more are missing at its end"));
}

TEST_CASE("when two threads change a figure at once, the last line has its final value") {
    Job job;
    job.policy(traced(R"("cap": "4GiB")"));
    const ReadTrace read = run(job, "threads_free_at_the_same_moment");
    REQUIRE(read.missing() == 0);
    int looked = 0, stale = 0;
    std::uint64_t plain = 0;
    for (const Event &event : read.events) {
        if (has_books(event) && event.kind == Kind::plain) plain = event.of_kind;
        if (event.what != What::alloc || event.kind != Kind::managed) continue;
        ++looked;
        stale += plain != 0;
    }
    CHECK(looked == 3000);
    CHECK(stale == 0);
}

TEST_CASE("a trace has the stacks of large allocations, each after its allocation, if the policy asks for them") {
    for (const bool asked : {true, false}) {
        Job job;
        job.policy(R"({ "version": 1, "trace": { "file": "trace-%p.json")" +
                   std::string(asked ? R"(, "stacks": "32MiB")" : "") + " } }");
        const ReadTrace read = run(job, "two_functions_allocate");
        const std::vector<Event> stacks = read.of(What::stack);
        if (!asked) {
            CHECK(stacks.empty());
            continue;
        }
        std::vector<Event> large;
        for (const Event &event : read.of(What::alloc))
            if (event.bytes >= 32 * static_cast<std::int64_t>(MiB)) large.push_back(event);
        REQUIRE(stacks.size() == 4);
        REQUIRE(large.size() == 4);
        CHECK(large[0].kind == Kind::contexts);  // counted without a limit too
        for (std::size_t i = 0; i < stacks.size(); ++i) {
            CAPTURE(stacks[i].text);
            CHECK(stacks[i].pointer == large[i].pointer);
            CHECK(stacks[i].bytes == large[i].bytes);
            CHECK(stacks[i].thread == large[i].thread);
            CHECK_THAT(stacks[i].text, contains("scenarios") && !contains("libcurb.so"));
        }
        // A function that the program exports has its name. Two calls in one line have the same stack.
        CHECK_THAT(stacks[1].text, contains("scenario_allocates_here+0x"));
        CHECK(stacks[1].text == stacks[2].text);
        CHECK_THAT(stacks[3].text, !contains("scenario_allocates_here"));
    }
}

TEST_CASE("curb takes at most 256 stacks at once, and then one in a millisecond") {
    Job job;
    job.policy(R"({ "version": 1, "trace": { "file": "trace-%p.json", "stacks": "1MiB" } })");
    const ReadTrace read = run(job, "a_thread_traces_as_fast_as_it_can");
    REQUIRE(read.events.size() > 2);
    const std::uint64_t ms = read.events.back().ns / 1'000'000;
    const std::size_t stacks = read.of(What::stack).size();
    CAPTURE(ms, stacks);
    CHECK(stacks >= 256);
    CHECK(stacks <= 256 + 1 + ms + 1);
}

TEST_CASE("a program without CUDA has no trace, and neither has one with an invalid policy") {
    Job job;
    job.policy(traced(R"("cap": "1GiB")")).in_its_folder();
    succeeds(job.run("a_program_without_cuda_stays_one", tested::kNoCuda));
    Job other;
    other.policy(R"({ "version": 1, "trace": { "file": "trace-%p.json" }, "gpu": 1 })").in_its_folder();
    succeeds(other.run("a_policy_that_cannot_be_used_refuses_every_allocation"));
    for (const fs::path &folder : {job.folder(), other.folder()}) CHECK(traces_in(folder).empty());
}

TEST_CASE("a trace file that cannot be made is reported once, and the program runs as without a trace") {
    Job job;
    const fs::path folder = job.folder();
    const std::string kind = GENERATE("missing", "folder", "pipe", "link", "link to nothing");
    CAPTURE(kind);
    std::ofstream(folder / "target") << "theirs";
    if (kind == "folder") fs::create_directory(folder / "t");
    if (kind == "pipe") REQUIRE(::mkfifo((folder / "t").c_str(), 0666) == 0);
    if (kind == "link") fs::create_symlink("target", folder / "t");
    if (kind == "link to nothing") fs::create_symlink("nothing", folder / "t");
    const std::string file = kind == "missing" ? "missing/t" : "t";
    const Outcome outcome = succeeds(job.policy(R"({ "version": 1, "trace": { "file": ")" + file + R"(" } })")
                                         .in_its_folder()
                                         .run("frees_at_the_very_end"));
    CHECK(lines(outcome.err).size() == 1);
    CHECK_THAT(outcome.err, contains("trace.file \"" + (folder / file).string() + "\""));
    CHECK_THAT(outcome.err, contains(kind == "missing" ? "No such file or directory" : "not a regular file"));
    CHECK(contents(folder / "target") == "theirs");
    CHECK_FALSE(fs::exists(folder / "nothing"));
}

TEST_CASE("a trace replaces a file, and leaves other hard links to that file as they are") {
    Job job;
    const fs::path file = job.folder() / "trace-1", link = job.folder() / "another-name";
    std::ofstream(file) << std::string(100'000, 'x');
    fs::create_hard_link(file, link);
    job.policy(R"({ "version": 1, "trace": { "file": "trace-1" } })");
    CHECK(run(job, "frees_at_the_very_end").of(What::alloc).size() == 2);
    CHECK(contents(link) == std::string(100'000, 'x'));
}

TEST_CASE("a trace is in the format that Chrome and Perfetto read") {
    Job job;
    job.policy(traced(R"("cap": "1GiB", "cache": { "max": "64MiB" })"));
    run(job, "usr1_trims_what_pools_keep");
    const Outcome judged =
        start({{tested::kPython, tested::kTraceFormat, traces_in(job.folder()).front().string()}, {}});
    INFO(judged.err);
    CHECK(judged.status == 0);
}
