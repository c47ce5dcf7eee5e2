// GPUs that share the host's memory. NVML has no figures of it: caps hold by the ledger, and what is free is what the
// host has available.

#include "job.hpp"
#include "simulated.hpp"

namespace {

// A machine of 8 GiB, GPU and host together, which several processes share.
class Unified {
  public:
    [[nodiscard]] Environment environment(const Environment &more = {}) const {
        return with(with(machine.environment(), {{"CURB_SIM_UNIFIED", meminfo}}), more);
    }
    [[nodiscard]] std::function<void()> mounts() const {
        return [this] {
            if (!mount_over(meminfo, "/proc/meminfo")) ::_exit(96);
        };
    }
    // A program under curb. `policy` has members of its policy.
    [[nodiscard]] Program program(const std::string &policy, const Environment &more = {}) const {
        const std::string file = machine.write("job.json", R"({ "version": 1, )" + policy + " }");
        return Program(machine, environment(with(under_policy(file), more)), mounts());
    }
    [[nodiscard]] Outcome curb(const Words &words) const {
        return start(
            {joined({tested::kCurb}, words), environment({{"CURB_LIBRARY", tested::kLibrary}}), {}, {}, mounts()});
    }
    [[nodiscard]] std::int64_t available_mib() const {
        const std::string text = contents(meminfo), name = "MemAvailable:";
        return std::stoll(text.substr(text.find(name) + name.size())) / 1024;
    }

    const Machine machine{Environment{{"CURB_SIM_MEMORY", "8GiB"}}};
    const std::string meminfo = machine.write("meminfo", "");
};

std::string keeping(const std::string &growth) { return R"("gpu": { "*": { "growth": { )" + growth + " } } }"; }

}  // namespace

TEST_CASE("a cap holds by the ledger alone, and is a part of what the device reports") {
    if (!can_mount()) return;
    const std::string scenario =
        GENERATE("where_nvml_cannot_see_the_process_the_context_still_counts", "green_contexts_stop_at_the_cap",
                 "threads_never_take_more_than_the_cap_together");
    CAPTURE(scenario);
    const Outcome outcome = succeeds(Job().unified().cap("1GiB").run(scenario));
    CHECK_THAT(outcome.err, !contains("NVML"));
    succeeds(Job()
                 .unified()
                 .cap("50%")
                 .with("CURB_SIM_MEMORY", "8GiB")
                 .with("SHOWN_MIB", "4096")
                 .run("the_program_sees_a_device_of_this_size"));
}

TEST_CASE("without a limit the program sees what the driver says") {
    if (can_mount()) succeeds(Job().unified().run("without_a_policy_nothing_is_changed"));
}

TEST_CASE("the allowance grows, and memory is kept free and waited for, by what the host has available") {
    if (!can_mount()) return;
    struct Case {
        const char *scenario, *gpu;
    };
    const auto one = GENERATE(
        Case{"the_allowance_grows_by_a_step_at_a_time",
             R"("cap": "8GiB", "growth": { "start": "1GiB", "step": "512MiB", "every": "400ms" })"},
        Case{"the_program_sees_what_the_host_has_available", R"("growth": { "keep_free": "4GiB" })"},
        Case{"keep_free_stays_free", R"("growth": { "keep_free": "4GiB" })"},
        Case{"a_context_and_a_request_wait_for_other_processes", R"("growth": { "keep_free": "6GiB", "wait": "20s" })"},
        Case{"sizes_that_no_device_has_are_not_waited_for", R"("growth": { "keep_free": "4GiB", "wait": "20s" })"},
        Case{"a_full_device_is_waited_for", R"("growth": { "wait": "20s" })"});
    CAPTURE(one.scenario);
    Job job;
    job.unified().policy(R"({ "version": 1, "gpu": { "*": { )" + std::string(one.gpu) + " } } }");
    succeeds(job.with("CURB_SIM_MEMORY", "8GiB")
                 .with("CURB_SIM_STATE", (job.folder() / "machine").string())
                 .with("KIND", "plain")
                 .run(one.scenario));
}

TEST_CASE("a program that takes all memory leaves the host what keep_free says") {
    if (!can_mount()) return;
    const Unified unified;
    Program greedy = unified.program(keeping(R"("keep_free": "3GiB")"));
    for (int i = 0; i < 3; ++i) {
        greedy.answers("fill");
        CHECK(unified.available_mib() >= 3 * 1024);
        CHECK(unified.available_mib() < 3 * 1024 + 64);
    }
    CHECK(greedy.answers("take 64") == "refused");
    // Another program takes its part of what is left, and this one gets nothing until it ends.
    {
        Holding other(unified.machine, 1024, unified.environment(), unified.mounts());
        REQUIRE(greedy.answers("drop") == "ok");
        greedy.answers("fill");
        CHECK(unified.available_mib() >= 3 * 1024);
    }
    greedy.answers("fill");
    CHECK(within(10s, [&] { return greedy.answers("fill"), unified.available_mib() < 3 * 1024 + 64; }));
    CHECK(unified.available_mib() >= 3 * 1024);
}

TEST_CASE("processes of one job stay within its cap together") {
    if (!can_mount()) return;
    const Unified unified;
    const Environment job{{"CURB_JOB", "one"}, {"CURB_JOB_CAP", "3GiB"}};
    Program first = unified.program(R"("log": {})", job), second = unified.program(R"("log": {})", job);
    REQUIRE(first.answers("take 1024") == "ok");
    CHECK(second.answers("take 1024") == "refused");  // with two contexts
    REQUIRE(first.answers("drop") == "ok");
    CHECK(second.answers("take 1024") == "ok");
}

TEST_CASE("a release says what came back, by the ledger") {
    if (!can_mount()) return;
    const Unified unified;
    Program program = unified.program(R"("gpu": { "*": { "cap": "4GiB" } })");
    REQUIRE(program.answers("pool") == "ok");
    const std::int64_t before = unified.available_mib();
    const Outcome outcome = unified.curb({"release", program.id()});
    CHECK(outcome.status == 0);
    CHECK_THAT(outcome.out, contains("256 MiB"));
    CHECK(unified.available_mib() == before + 256);
}

TEST_CASE("curb ps and curb doctor say that GPU and host share memory, of which NVML has no figures") {
    if (!can_mount()) return;
    const Unified unified;
    Program program = unified.program(R"("gpu": { "*": { "cap": "4GiB" } })");
    REQUIRE(program.answers("take 1024") == "ok");
    const Outcome all = unified.curb({"ps"});
    CHECK_THAT(all.out, contains("GPU 0  NVIDIA GB10  1.51 GiB of 8 GiB used, 6.49 GiB free") &&
                            contains("GPU 0 shares the host's memory: NVML has no figures of it"));
    const Json gpu = Json::parse(unified.curb({"ps", "--json"}).out)["gpus"][0];
    CHECK(gpu["shares_host_memory"] == true);
    CHECK(gpu["uses"][0]["nvml"].is_null());
    CHECK(gpu["uses"][0]["books"]["shares_host_memory"] == true);
    const Outcome machine = unified.curb({"doctor"});
    INFO(machine.out << machine.err);
    // Its status is not judged: for root it covers the programs of other tests.
    CHECK_THAT(machine.out, contains("cuda:0 shares the host's memory, of which NVML has no figures") &&
                                contains("there are none, nor turns: they would make no room") &&
                                !contains(program.id()));
    const Outcome of_process = unified.curb({"doctor", program.id()});
    CHECK(of_process.status == 0);
    CHECK_THAT(of_process.out, contains("its GPU shares the host's memory, of which NVML has no figures"));
}

constexpr const char *kWhy = "cuda:0 shares the host's memory, so naps and turns would make no room";

TEST_CASE("a process has no naps and is not suspended, and says why") {
    if (!can_mount()) return;
    const Unified unified;
    const fs::path log = unified.machine.folder() / "nap.log";
    Program program = unified.program(R"("suspend": { "idle": "100ms" }, "log": { "level": "info", "file": ")" +
                                      log.string() + "\" }");
    REQUIRE(program.answers("hold 64") == "held");
    CHECK(within(20s, [&] { return count(contents(log), std::string("no naps: ") + kWhy) == 1; }));
    CHECK_THAT(unified.curb({"ps", program.id()}).out, contains(std::string("none now: ") + kWhy));
    CHECK_THAT(unified.curb({"doctor", program.id()}).out, contains(std::string("has no naps: ") + kWhy));
    fails(unified.curb({"suspend", program.id()}),
          contains("shares the host's memory, so a suspend would make no room"));
    CHECK(unified.machine.state(program.pid()) == "running");
    CHECK(program.answers("check") == "right");
}

TEST_CASE("a process with turns runs as without them, and says why") {
    if (!can_mount()) return;
    const Unified unified;
    const fs::path log = unified.machine.folder() / "turns.log";
    const std::string turns =
        R"("suspend": { "turn": "100ms" }, "log": { "level": "info", "file": ")" + log.string() + "\" }";
    Program first = unified.program(turns), second = unified.program(turns);
    first.answers("fill");
    CHECK(second.answers("export piece 1024") == "refused");  // by a pool, before any block that curb could move
    CHECK(second.answers("take 1024") == "refused");
    CHECK_THAT(contents(log), !contains(" waits "));
    REQUIRE(first.answers("drop") == "ok");
    CHECK(second.answers("take 1024") == "ok");
    CHECK(within(20s, [&] { return count(contents(log), std::string("no naps: ") + kWhy) == 2; }));
    for (const Program *one : {&first, &second}) {
        CHECK_THAT(unified.curb({"ps", one->id()}).out,
                   contains(std::string("none now: ") + kWhy) && !contains("whose moves took"));
        CHECK_THAT(unified.curb({"doctor", one->id()}).out, contains(std::string("has no naps: ") + kWhy));
    }
}
