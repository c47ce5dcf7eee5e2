// Policies in force on programs on the simulated driver: growth, waiting, ceilings, edits, and the variables that curb
// sets before main.

#include "job.hpp"

namespace {

std::string growing(const std::string &gpu, const std::string &more = "") {
    return R"({ "version": 1, "log": { "level": "info" }, "gpu": { "*": { )" + gpu + " } }" + more + " }";
}

// A machine of 8 GiB that several processes share.
class Shared {
  public:
    explicit Shared(const std::string &policy) {
        job.policy(policy).with("CURB_SIM_STATE", (job.folder() / "machine").string()).with("CURB_SIM_MEMORY", "8GiB");
    }
    Job job;
};

constexpr const char *kLab = R"({ "version": 1, "gpu": { "*": { "cap": "1GiB" } } })";

// Returns the environment that main() finds, with a newline before and after each variable.
std::string environment_of(Job &job, const std::vector<std::string> &command = {"env"}) {
    job.with("ASAN_OPTIONS", "detect_leaks=0");  // the programs leak
    const Outcome outcome = job.run_command(command);
    CHECK(outcome.status == 0);
    CHECK(outcome.err.empty());
    return "\n" + outcome.out;
}

}  // namespace

TEST_CASE("the allowance begins at start and grows by a step at a time, when more is needed") {
    const Outcome outcome = succeeds(
        Job()
            .policy(growing(R"("cap": "8GiB", "growth": { "start": "1GiB", "step": "512MiB", "every": "400ms" })"))
            .run("the_allowance_grows_by_a_step_at_a_time"));
    CHECK_THAT(outcome.err, contains("allowance: cuda:0 may now hold 1.5 GiB") &&
                                contains("allowance: cuda:0 may now hold 2.5 GiB") &&
                                contains("of the allowance of 1 GiB is held, ") &&
                                contains(", and the next growth step is due in"));
}

TEST_CASE("a growth step comes after a release, unless the policy says otherwise") {
    const std::string growth = R"("cap": "8GiB", "growth": { "start": "1GiB", "factor": 2 })";
    const Outcome released = succeeds(Job().policy(growing(growth)).run("a_release_comes_before_a_step"));
    CHECK_THAT(released.err, !contains("may now hold"));
    const Outcome grown = succeeds(Job()
                                       .policy(growing(growth, R"(, "release": { "before_growth": false })"))
                                       .with("STEP_FIRST", "1")
                                       .run("a_release_comes_before_a_step"));
    CHECK_THAT(grown.err, contains("may now hold 2 GiB"));
}

TEST_CASE("a request that waits goes on as soon as memory comes back or the policy is edited") {
    const std::string scenario =
        GENERATE("a_request_waits_for_a_free_in_another_thread", "a_request_that_waits_follows_an_edit");
    const Outcome outcome =
        succeeds(Job().policy(growing(R"("cap": "1GiB", "growth": { "wait": "20s" })")).run(scenario));
    CHECK_THAT(outcome.err, contains(" on cuda:0 waits (at most 20s): ") && contains("of the cap of 1 GiB is held") &&
                                contains("granted"));
    if (scenario == "a_request_that_waits_follows_an_edit")
        CHECK_THAT(outcome.err, contains("new policy in force") && contains(R"(/gpu/*/cap: "1GiB" -> "2GiB")") &&
                                    contains(R"(/gpu/*/growth/wait: "20s" -> not set)"));
}

TEST_CASE("a request waits no longer than the policy says, and not at all if it could never fit") {
    const Outcome outcome =
        succeeds(Job()
                     .policy(R"({ "version": 1, "gpu": { "*": { "cap": "1GiB", "growth": { "wait": "1500ms" } } } })")
                     .run("a_request_waits_no_longer_than_the_policy_says"));
    // After a second there is a warning, once for both requests.
    const std::string warning = "a request for 64 MiB on cuda:0 has waited for 1s (at most 1500ms): ";
    CHECK(count(outcome.err, warning) == 1);
    CHECK_THAT(outcome.err, contains("of the cap of 1 GiB is held") && contains("refused 64 MiB on cuda:0"));
}

TEST_CASE("growth steps and waits go on under a clock that stands still") {
    succeeds(
        Job()
            .policy(growing(
                R"("cap": "2GiB", "growth": { "start": "1GiB", "step": "512MiB", "every": "100ms", "wait": "1s" })"))
            .with("LD_PRELOAD", tested::kLibrary + ":" + tested::kPacedClock)
            .for_at_most(30)
            .run("a_request_stops_waiting"));
}

TEST_CASE("a remedy is for the way in which the limit was set") {
    struct Case {
        Environment variables;
        std::string gpu;  // of the policy's file; empty: there is none
        const char *remedy;
    };
    const Case cases[] = {
        {{}, R"("cap": "1GiB")", R"( 1792MiB, or "cap" in /)"},
        {{{"CURB_CAP", "1GiB"}}, R"("cap": "2GiB")", " 1792MiB, or next time curb run --cap 1792MiB (CURB_CAP)"},
        {{{"CURB_CAP", "2GiB"}}, R"("cap": "1GiB")", R"( 1792MiB, or "cap" in /)"},
        {{{"GPU_MEMORY_LIMIT", "1073741824"}}, "", "or raise GPU_MEMORY_LIMIT, from which it has its cap"},
        {{}, R"("growth": { "start": "1GiB", "step": "1MiB", "every": "1h" })", R"(raise "start" in /)"},
        {{{"CURB_GROWTH", "1GiB:1MiB:1h"}},
         "",
         "raise START of --growth (CURB_GROWTH=1GiB:1MiB:1h), or let requests wait: curb run --wait 30s "
         "(CURB_WAIT=30s)"},
        {{{"CURB_KEEP_FREE", "79GiB"}, {"CURB_WAIT", "10ms"}},
         "",
         "lower --keep-free (CURB_KEEP_FREE=79GiB), or let requests wait longer: --wait (CURB_WAIT=10ms)"},
    };
    for (const Case &one : cases) {
        CAPTURE(one.variables, one.gpu);
        Job job;
        job.with(one.variables);
        if (!one.gpu.empty()) job.policy(R"({ "version": 1, "gpu": { "*": { )" + one.gpu + " } } }");
        CHECK_THAT(succeeds(job.run("one_refusal_is_said_once")).err, contains(one.remedy));
    }
}

TEST_CASE("a device that others fill is reported as such, once, with who holds it") {
    Shared machine(R"({ "version": 1, "gpu": { "*": { "cap": "7GiB" } } })");
    const Outcome outcome = succeeds(machine.job.run("a_device_that_others_fill_refuses"));
    CHECK(lines(outcome.err).size() == 2);
    CHECK_THAT(outcome.err,
               contains("refused 2 GiB on cuda:0: the driver is out of memory: 1012 MiB free, others hold 6.51 GiB "
                        "(6.51 GiB by ") &&
                   contains(" (exe)); not curb's cap (held: context and code 518 MiB). The program sees "
                            "CUDA_ERROR_OUT_OF_MEMORY. To allow it: make room there: curb release ") &&
                   contains(R"(, or let requests wait: "wait": "30s" in )"));
    CHECK_THAT(lines(outcome.err).back(),
               contains("refused 3 requests, the last at ") && contains(": 2 GiB, by a full device"));
    Shared observed(R"({ "version": 1 })");
    CHECK(succeeds(observed.job.run("a_device_that_others_fill_refuses")).err.empty());
}

TEST_CASE("a request beyond the limit of the program's own pool does not wait for the device") {
    const std::string gpu = R"("gpu": { "*": { "cap": "7GiB")";
    const std::string policy = GENERATE_COPY(gpu + " } }", gpu + R"(, "growth": { "wait": "20s" } } })",
                                             gpu + R"( } }, "suspend": { "turn": "2s" })");
    CAPTURE(policy);
    Job job;
    job.policy(R"({ "version": 1, )" + policy + " }");
    CHECK_THAT(succeeds(job.run("a_pool_with_a_limit_refuses_beyond_it")).err,
               contains("refused 256 MiB on cuda:0: the driver refuses it although ") &&
                   contains("To allow it: raise that limit"));
}

TEST_CASE("keep_free stays free on the device, whichever process uses the rest") {
    Shared machine(growing(R"("growth": { "keep_free": "4GiB" })"));
    const Outcome outcome = succeeds(machine.job.run("keep_free_stays_free"));
    CHECK_THAT(outcome.err, contains("would have less than 4 GiB left for others (keep_free)"));
}

TEST_CASE(
    "requests wait for a growth step, for other processes and for each other, but not for sizes that no device has") {
    struct Case {
        const char *scenario, *gpu;
        const char *kind = "";
    };
    constexpr const char *kWait = R"("growth": { "wait": "20s" })", *kFull = "a_full_device_is_waited_for";
    const auto one = GENERATE_COPY(
        Case{"a_request_waits_until_a_step_is_due",
             R"("cap": "3GiB", "growth": { "start": "1GiB", "step": "512MiB", "every": "200ms", "wait": "5s" })"},
        Case{"a_context_and_a_request_wait_for_other_processes", R"("growth": { "keep_free": "6GiB", "wait": "20s" })"},
        Case{kFull, kWait, "context"}, Case{kFull, kWait, "plain"}, Case{kFull, kWait, "async"},
        Case{kFull, kWait, "mapped"}, Case{kFull, kWait, "graph"}, Case{kFull, kWait, "module"},
        Case{kFull, kWait, "launch"}, Case{"sizes_that_no_device_has_are_not_waited_for", kWait},
        Case{"sizes_that_no_device_has_are_not_waited_for", R"("growth": { "keep_free": "4GiB", "wait": "20s" })"},
        Case{"threads_that_wait_for_each_other_are_all_served",
             R"("cap": "4GiB", "growth": { "start": "1GiB", "step": "256MiB", "every": "10ms", "wait": "50s",
                "keep_free": "5GiB" })"});
    CAPTURE(one.scenario, one.gpu, one.kind);
    Shared machine(growing(one.gpu));
    succeeds(machine.job.with("KIND", one.kind).run(one.scenario));
}

TEST_CASE("after a release the allowance falls back to what is held, rounded up to a step") {
    succeeds(Job()
                 .logged(R"("gpu": { "*": { "cap": "8GiB", "growth":
                     { "start": "1GiB", "step": "512MiB", "every": "300ms", "wait": "20s" } } })")
                 .run("after_a_release_the_allowance_falls_back"));
}

TEST_CASE("a ceiling limits the user's policy and CURB_CAP, and applies without them") {
    const Ceiling ceiling(kLab);
    if (!can_mount()) return;
    const auto prints_total = [&](Job &job, const char *mib) {
        succeeds(job.ceiling(ceiling).with("SHOWN_MIB", mib).run("the_program_sees_a_device_of_this_size"));
    };
    prints_total(Job().policy(R"({ "version": 1, "gpu": { "cuda:0": { "cap": "4GiB" } } })"), "1024");
    prints_total(Job().policy(R"({ "version": 1, "gpu": { "*": { "cap": "800MiB" } } })"), "800");
    prints_total(Job().cap("8GiB"), "1024");
    Job nothing_said;
    prints_total(nothing_said, "1024");
}

TEST_CASE("a ceiling limits live edits, and an edit of it is in force within a second") {
    const Ceiling ceiling(kLab);
    if (!can_mount()) return;
    Job job;
    job.policy(R"({ "version": 1, "gpu": { "*": { "cap": "800MiB" } } })").ceiling(ceiling);
    const Outcome outcome = succeeds(job.run("edits_stay_below_the_ceiling"));
    CHECK_THAT(outcome.err, contains("/etc/curb/policy.json:1:") && contains("stays in force"));
}

TEST_CASE("before main the program's variables are set as the policy says, where the user has not set them",
          "[foreign]") {
    const Words env{"env"}, python{"python3", "-c", "import os; os.execvp('env', ['env'])"};
    const std::string room = "TF_DEVICE_MIN_SYS_MEMORY_IN_MB=225";  // set for any cap
    const std::string for_rules = R"({ "version": 1, "rules": [
        { "match": { "exe": "env" }, "frameworks": { "env": { "OF_ENV": "1" } } },
        { "match": { "args": "-c *" }, "fr\u0061meworks": { "env": { "OF_PYTHON": "1" } } } ] })";
    const std::string capped = R"({ "version": 1, "gpu": { "*": { "cap": "4GiB" } } })";
    const auto policy = [](const std::string &frameworks) {
        return R"({ "version": 1, "frameworks": )" + frameworks + " }";
    };
    struct Case {
        std::string policy;  // empty: none
        Environment users;
        Words command, set, not_set;  // whole lines; parts of lines
    };
    const Case cases[] = {
        {policy(R"({ "steer": true, "env": { "MINE": "1" } })"),
         {{"XLA_PYTHON_CLIENT_PREALLOCATE", "true"}, {"PYTORCH_ALLOC_CONF", "max_split_size_mb:64"}},
         env,
         {"MINE=1", "TF_FORCE_GPU_ALLOW_GROWTH=true", "TF_GPU_ALLOCATOR=cuda_malloc_async",
          "XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async", "XLA_PYTHON_CLIENT_PREALLOCATE=true",
          "PYTORCH_ALLOC_CONF=max_split_size_mb:64"},
         {"PYTORCH_CUDA_ALLOC_CONF", "FRACTION"}},
        {for_rules, {}, env, {"OF_ENV=1"}, {"OF_PYTHON"}},
        {for_rules, {}, python, {"OF_ENV=1", "OF_PYTHON=1"}, {}},  // env inherits from Python
        {policy("{}"), {}, env, {}, {"TF_"}},
        {R"({ "frameworks": { "steer": true })", {}, env, {}, {"TF_"}},  // an invalid policy
        {"", {}, env, {}, {"TF_"}},
        {"", {{"CURB_CAP", "4GiB"}}, env, {room}, {"TF_GPU_ALLOCATOR", "XLA_"}},
        {capped, {}, env, {room}, {"TF_GPU_ALLOCATOR", "XLA_"}},
        {policy(R"({ "steer": false })"), {{"CURB_CAP", "2GiB"}}, env, {}, {"TF_"}},
        {"",
         {{"CURB_CAP", "4GiB"}, {"TF_DEVICE_MIN_SYS_MEMORY_IN_MB", "600"}},
         env,
         {"TF_DEVICE_MIN_SYS_MEMORY_IN_MB=600"},
         {room}},
    };
    for (const Case &one : cases) {
        CAPTURE(one.policy, one.users, one.command);
        Job job;
        if (!one.policy.empty()) job.policy(one.policy);
        job.with(one.users);
        const std::string found = environment_of(job, one.command);
        for (const std::string &line : one.set) CHECK_THAT(found, contains("\n" + line + "\n"));
        for (const std::string &part : one.not_set) CHECK_THAT(found, !contains(part));
    }
    // curb reads the file in blocks of 2 KiB, of which two share the word.
    for (const std::size_t begins_at : {2039, 2043, 2046}) {
        std::string text = R"({ "version": 1,)";
        text.resize(begins_at, ' ');
        text += R"("frameworks": { "env": { "MINE": "1" } } })";
        CHECK_THAT(environment_of(Job().policy(text), env), contains("\nMINE=1\n"));
    }
    const Ceiling ceiling(kLab);
    if (can_mount()) CHECK_THAT(environment_of(Job().ceiling(ceiling)), contains("\n" + room + "\n"));
}

TEST_CASE("a rule's cap applies only to programs that match the rule, wherever it is in the file", "[foreign]") {
    const std::string shell = R"("rules": [ { "match": { "args": "-c *" }, "gpu": { "*": { "cap": "4GiB" } } } ])";
    const auto found = [](const std::string &text, const std::vector<std::string> &command) {
        return environment_of(Job().policy(R"({ "version": 1, )" + text + " }"), command);
    };
    const std::vector<std::string> env{"env"}, python{"python3", "-c", "import os; os.execvp('env', ['env'])"};
    const std::string padding = "/*" + std::string(40'000, ' ') + "*/ ";
    for (const std::string &text : {shell, padding + shell, shell + padding}) {
        CHECK_THAT(found(text, env), !contains("TF_"));
        CHECK_THAT(found(text, python), contains("TF_DEVICE_MIN_SYS_MEMORY_IN_MB=225\n"));
    }
    const std::string all = R"("gpu": { "*": { "cap": "4GiB" } })";
    CHECK_THAT(found(shell + ", " + padding + all, env), contains("TF_DEVICE_MIN_SYS_MEMORY_IN_MB=225\n"));
}

TEST_CASE("a cap that applies to all programs makes none parse its policy before main", "[foreign][bare]") {
    const auto parses = [](Job &job) {
        const Outcome outcome = job.run_command({"cat", "/proc/self/maps"});
        REQUIRE_THAT(outcome.out, contains("libcurb.so"));
        return outcome.out.find("libgcc_s") != std::string::npos;  // loaded before anything that may throw
    };
    Job variable, policy, rules, mentions;
    CHECK_FALSE(parses(variable.cap("4GiB")));
    CHECK_FALSE(parses(policy.policy(kLab)));
    CHECK_FALSE(parses(rules.policy(R"({ "version": 1, "gpu": { "*": { "cap": "4GiB" } }, "rules": [
        { "match": {}, "gpu": { "*": { "cap": "2GiB" } } } ] })")));
    CHECK(parses(mentions.policy(R"({ "version": 1, "frameworks": {} })")));
}
