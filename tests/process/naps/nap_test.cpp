// Naps: a process leaves its GPUs by itself when it is idle, and comes back with its next call.
#include "../traces/traces.hpp"
#include "capped.hpp"
#include "ceiling.hpp"
#include "control/ticket.hpp"
#include "naps.hpp"

namespace {

// Checks that the command `what` brings a napping program back unharmed.
void comes_back_after(const std::string &what) {
    const Machine machine;
    Holding program(machine, 2048, napping(machine));
    REQUIRE(is_out(machine, program));
    CHECK_FALSE(program.answers(what).empty());
    CHECK(program.answers("check") == "right");
    CHECK(program.finish() == 0);
}

// Checks that a program that was told "prepare" is suspended, whatever it calls, until curb resume.
void stays_suspended_until_resumed(const Machine &machine, Program &program) {
    CHECK(program.answers("begin") == "1");  // one call returns, the others wait
    std::this_thread::sleep_for(500ms);
    CHECK(machine.state(program.pid()) == "checkpointed");
    REQUIRE(machine.curb({"resume", program.id()}).status == 0);
    CHECK_THAT(program.answers("returned"), contains("0 wrong"));
}

}  // namespace

TEST_CASE("a process that calls the driver more often than the idle time does not nap") {
    const Machine machine;
    Holding program(machine, 64, napping(machine, R"("idle": "2s")"));
    for (int i = 0; i < 40; ++i) {
        CHECK(program.answers("check") == "right");
        std::this_thread::sleep_for(100ms);
    }
    CHECK_THAT(log_of(machine), !contains("a nap begins"));
    CHECK(within(20s, [&] { return machine.state(program.pid()) == "checkpointed"; }));
}

TEST_CASE("an idle process leaves the GPU by itself, and its next call brings it back") {
    const Machine machine;
    Holding program(machine, 2048, napping(machine));
    const std::int64_t before = machine.held(program.pid());
    for (int i = 0; i < 3; ++i) {
        REQUIRE(is_out(machine, program));
        CHECK(machine.held(program.pid()) == kLeft);
        CHECK(program.answers(i == 1 ? "synchronize" : "check") == (i == 1 ? "ok" : "right"));
        CHECK(within(10s, [&] {  // on a slow machine it may nap again before the check
            REQUIRE(program.answers("check") == "right");
            return machine.state(program.pid()) == "running" && machine.held(program.pid()) == before;
        }));
    }
    CHECK(program.finish() == 0);
    CHECK(within(10s, [&] { return helper_of(program.pid()) == 0; }));
}

TEST_CASE("a process that calls the driver now and then, or computes without a call, takes no nap meanwhile") {
    const auto [begin, end, answer] = GENERATE(table<const char *, const char *, const char *>(
        {{"call on 0", "returned", "0 wrong"}, {"utilise 50", "utilise 0", "ok"}}));
    const Machine machine;
    Program program(machine, napping(machine, R"("idle": "1s")"));
    REQUIRE(program.answers(begin) == "ok");
    std::this_thread::sleep_for(3s);
    CHECK(machine.state(program.pid()) == "running");
    CHECK_THAT(program.answers(end), contains(answer));
    REQUIRE(is_out(machine, program));
    CHECK(program.answers("check") == "right");
}

TEST_CASE("questions to a process do not keep it from its nap") {
    const Machine machine;
    Holding program(machine, 2048, napping(machine, R"("idle": "2s")"));
    REQUIRE(within(20s, [&] {
        REQUIRE(machine.curb({"ps", "--json", program.id()}).status == 0);
        return machine.state(program.pid()) == "checkpointed";
    }));
    CHECK(program.answers("check") == "right");
}

TEST_CASE("a process that polls NVML gets its last figures in a nap, and the nap goes on") {
    const Machine machine;
    Holding program(machine, 2048, napping(machine, R"("idle": "500ms")"));
    const std::string figures = program.answers("figures");
    CHECK_THAT(figures, contains(" 34 76000"));
    REQUIRE(within(30s, [&] {  // polling does not prevent the nap
        CHECK(program.answers("figures") == figures);
        return machine.state(program.pid()) == "checkpointed";
    }));
    for (int i = 0; i < 20; ++i) {
        CHECK(program.answers("figures") == figures);
        std::this_thread::sleep_for(20ms);
    }
    CHECK(machine.state(program.pid()) == "checkpointed");
    CHECK(nap_of(machine, program)["count"] == 1);
    CHECK(program.answers("check") == "right");
}

TEST_CASE("a call of NVML whose answer curb does not know ends a nap") {
    const Machine machine;
    Program program(machine, napping(machine));
    const std::string name = program.answers("name");
    REQUIRE(is_out(machine, program));
    CHECK(program.answers("name") == name);
    REQUIRE(is_out(machine, program));
    CHECK_THAT(program.answers("figures"), contains(" 34 76000"));
    CHECK(program.finish() == 0);
}

TEST_CASE("curb ps, metrics and doctor show a nap, and curb ps its end") {
    const Machine machine;
    Holding program(machine, 2048, napping(machine));
    REQUIRE(is_out(machine, program));
    REQUIRE(within(10s, [&] { return nap_of(machine, program)["out"] == true; }));
    CHECK(nap_of(machine, program)["count"] == 1);
    CHECK(nap_of(machine, program)["bytes"] >= 2048 * kMiB);
    CHECK_THAT(machine.curb({"ps"}).out, contains("naps since") && contains("until its next CUDA call"));
    CHECK_THAT(machine.curb({"ps", program.id()}).out, contains("in host memory until its next CUDA call"));
    CHECK_THAT(machine.curb({"ps", "--json"}).out, contains(R"("state":"napping")"));
    CHECK_THAT(machine.curb({"metrics"}).out,
               contains("curb_napping{") && contains("curb_naps_total{") && contains("curb_nap_bytes_total{"));
    CHECK_THAT(machine.curb({"doctor"}).out, contains("1 napping: " + program.id()));
    CHECK_THAT(machine.curb({"doctor", program.id()}).out, contains("naps: its memory is in host memory"));
    CHECK(within(30s, [&] {  // it may nap again before curb ps asks it
        REQUIRE(program.answers("check") == "right");
        return machine.curb({"ps", program.id()}).out.find("so far; a call waited") != std::string::npos;
    }));
    const Json nap = nap_of(machine, program);
    CHECK(nap["bytes_total"] == nap["count"].get<std::uint64_t>() * nap["bytes"].get<std::uint64_t>());
    CHECK(nap["waited_total_ms"] >= nap["waited_ms"]);
    CHECK_THAT(machine.curb({"metrics"}).out,
               contains("curb_nap_waited_seconds{") && contains("curb_nap_waited_seconds_total{"));
    CHECK(within(10s, [&] { return log_of(machine).find("has ended") != std::string::npos; }));
    CHECK_THAT(log_of(machine), contains("a nap begins: 2.5") && contains("the nap has ended, and a call waited ") &&
                                    contains("back on the device in "));
}

TEST_CASE("naps and suspends are in the trace and in its report, and a replay skips them") {
    const Machine machine(Environment{{"CURB_SIM_LATENCY", "h100"}});
    const std::string file = machine.folder() / "trace.json";
    Program program(machine, with(napping(machine, R"("idle": "500ms")"), {{"CURB_TRACE", file}}));
    REQUIRE(program.answers("hold 2048") == "held");
    REQUIRE(is_out(machine, program));
    CHECK(program.answers("check") == "right");
    // It can be suspended in its GPUs or in the next nap, but not on its way.
    REQUIRE(within(20s, [&] { return machine.curb({"suspend", program.id()}).status == 0; }));
    REQUIRE(machine.curb({"resume", program.id()}).status == 0);
    CHECK(program.answers("check") == "right");
    CHECK(program.finish() == 0);
    const ReadTrace read = read_trace(file);
    const std::vector<Event> left = read.of(What::out), back = read.of(What::back);
    REQUIRE(left.size() >= 2);
    REQUIRE(back.size() == left.size());
    CHECK(left[0].text == "nap");
    for (std::size_t i = 0; i < left.size(); ++i) {
        CHECK(left[i].bytes >= 2048 * kMiB);
        CHECK(back[i].bytes == left[i].bytes);
        CHECK(back[i].ns > left[i].ns);
        CHECK((i + 1 == left.size() || left[i + 1].ns >= back[i].ns));
    }
    CHECK(back[0].duration_ns > 0);  // the call may begin to wait while the process still leaves
    CHECK_THAT(machine.curb({"report", file}).out, contains("Out of its GPUs ") && contains("by a nap, for "));
    machine.succeeds({"replay", file, "--cap", "8GiB"});
}

TEST_CASE("curb suspend turns a nap into a suspend, which no call ends; curb resume ends a nap until the next") {
    const Machine machine;
    Program program(machine, napping(machine));
    REQUIRE(program.answers("prepare 0") == "ok");
    REQUIRE(is_out(machine, program));
    REQUIRE(within(10s, [&] { return nap_of(machine, program)["out"] == true; }));
    CHECK_THAT(machine.succeeds({"suspend", program.id()}).out, contains("it was napping"));
    stays_suspended_until_resumed(machine, program);
    REQUIRE(is_out(machine, program));
    REQUIRE(within(10s, [&] { return nap_of(machine, program)["out"] == true; }));  // its helper has done its part
    machine.succeeds({"resume", program.id()});
    REQUIRE(is_out(machine, program));
    CHECK(program.answers("check") == "right");
}

TEST_CASE("curb suspend waits for a nap that is just moving the process out, and makes it a suspend", "[patience]") {
    const Machine machine(Environment{{"CURB_SIM_LATENCY", "h100"}});
    Program program(machine, napping(machine, R"("idle": "500ms")"));
    REQUIRE(program.answers("prepare 0") == "ok");
    REQUIRE(program.answers("hold 6144") == "held");
    REQUIRE(within(20s, [&] { return machine.state(program.pid()) == "locked"; }));
    const Outcome met = machine.curb({"suspend", "--timeout", "1m", program.id()});
    INFO(met.err);
    CHECK(met.status == 0);
    CHECK_THAT(met.out, contains("it was napping"));
    stays_suspended_until_resumed(machine, program);
}

TEST_CASE("a process that would take too much host memory stays, says why, and tries again less and less often") {
    const Machine machine;
    Holding program(machine, 2048, napping(machine, R"("idle": "100ms", "host_memory": "1GiB")"));
    REQUIRE(within(20s, [&] { return nap_of(machine, program)["refused"].is_string(); }));
    CHECK_THAT(nap_of(machine, program)["refused"].get<std::string>(), contains("suspend.host_memory is 1 GiB"));
    CHECK_THAT(machine.curb({"ps", program.id()}).out, contains("none now: "));
    CHECK(machine.state(program.pid()) == "running");
    CHECK(program.answers("give") == "given");
    REQUIRE(is_out(machine, program));
    CHECK(program.answers("check") == "right");
}

TEST_CASE("a share of the host's memory in a policy does not lift the bytes of the machine's ceiling") {
    const Ceiling ceiling(R"({ "version": 1, "suspend": { "host_memory": "1GiB" } })");
    if (!can_mount()) return;
    const Machine machine;
    Holding program(machine, 2048, napping(machine, R"("idle": "100ms", "host_memory": "100%")"), ceiling.prepare());
    REQUIRE(within(20s, [&] { return nap_of(machine, program)["refused"].is_string(); }));
    CHECK_THAT(nap_of(machine, program)["refused"].get<std::string>(), contains("suspend.host_memory is 1 GiB"));
}

// Checks that the process stays in its GPUs, and that `curb ps PID` gives `why`.
void stays(const Machine &machine, Program &program, const std::string &why) {
    CAPTURE(why);
    std::string shown;
    CHECK(within(20s, [&] {
        shown = machine.curb({"ps", program.id()}).out;
        std::erase(shown, '\n');
        return shown.find("none now: ") != std::string::npos;
    }));
    CHECK_THAT(shown, contains(why));
    CHECK(machine.state(program.pid()) == "running");
}

TEST_CASE("a process that cannot leave its GPUs stays, and curb ps says why") {
    struct Case {
        const char *what;
        const char *why;
        Environment environment;
        const char *library = nullptr;
    };
    const auto one =
        GENERATE(Case{"managed 64", "of managed memory", {}},
                 Case{"hold 64", "WORLD_SIZE=2", {{"WORLD_SIZE", "2"}, {"RANK", "0"}}},
                 Case{"hold 64", "(NCCL is loaded", {{"WORLD_SIZE", "2"}, {"RANK", "0"}}, "libnccl.so.2"},
                 Case{"hold 64", "is divided (MIG)", {{"CURB_SIM_MIG", "1"}}},
                 Case{"hold 64", "through MPS", {{"CURB_SIM_MPS", "1"}}},
                 Case{"hold 64", "570 or newer", older_driver()}, Case{"capture", "a graph capture is under way", {}},
                 Case{"export handle 2", "shares GPU memory", {}}, Case{"export pool", "shares GPU memory", {}},
                 Case{"import external memory", "imported memory of a graphics library", {}});
    CAPTURE(one.what, one.why);
    const Machine machine(one.environment);
    Program program(machine, with(napping(machine), one.library ? with_library(machine, one.library) : Environment{}));
    REQUIRE_THAT(program.answers(one.what), !contains("refused") && !contains("error"));
    stays(machine, program, one.why);
    fails(machine.curb({"suspend", program.id()}), contains(one.why));
    CHECK(machine.state(program.pid()) == "running");
}

TEST_CASE("processes that share a block or an event stay until both are done with it") {
    struct Case {
        std::string take, share, open, close, drop, why;
    };
    const std::string memory = "shares GPU memory";
    const auto one = GENERATE_COPY(
        Case{"take 64", "export block", "open block", "close block", "drop", memory},
        Case{"take 64", "export block", "open block by an old call", "close block", "drop", memory},
        Case{"synchronize", "export event", "open event", "destroy event", "destroy event", "shares events"});
    CAPTURE(one.open);
    const Machine machine;
    // Memory that curb itself moves cannot be shared by CUDA IPC.
    const Environment naps = napping(machine, R"("idle": "200ms")");
    Program maker(machine, naps), user(machine, naps);
    REQUIRE(maker.answers(one.take) == "ok");
    const std::string handle = maker.answers(one.share);
    user.tell(one.open);
    REQUIRE(user.answers(handle) == "ok");
    stays(machine, maker, one.why);
    stays(machine, user, one.why);
    REQUIRE(user.answers(one.close) == "ok");
    CHECK(is_out(machine, user));
    REQUIRE(maker.answers(one.drop) == "ok");
    CHECK(is_out(machine, maker));
}

TEST_CASE("a process that cannot leave its GPUs still releases when it is idle") {
    const Machine machine;
    Program program(machine, napping(machine, R"("idle": "200ms")", R"("release": { "idle": "500ms" },)"));
    REQUIRE(program.answers("managed 64") == "ok");
    REQUIRE(program.answers("pool") == "ok");
    REQUIRE(machine.held(program.pid()) >= kContext + 256);
    CHECK(within(20s, [&] { return machine.held(program.pid()) < kContext + 256; }));
    stays(machine, program, "of managed memory");
}

TEST_CASE("a process whose exported memory is freed, or whose import of external memory is destroyed, naps again") {
    const Machine machine;
    Program program(machine, napping(machine));
    CHECK_THAT(program.answers("export handle 2"), contains(program.id() + "/"));
    REQUIRE(program.answers("export pool") == "ok");
    stays(machine, program, "shares GPU memory");
    REQUIRE(program.answers("close handle") == "ok");
    REQUIRE(program.answers("destroy pool") == "ok");
    CHECK(is_out(machine, program));
    REQUIRE(program.answers("import external memory") == "ok");
    stays(machine, program, "imported memory of a graphics library");
    REQUIRE(program.answers("destroy external memory") == "ok");
    CHECK(is_out(machine, program));
}

// helper_test has those that curb does not start.
TEST_CASE("a process whose command curb cannot run stays and says why") {
    const Machine machine;
    fs::create_directories(machine.folder() / "lib");
    const fs::path alone = machine.folder() / "lib/libcurb.so";
    fs::copy_file(tested::kLibrary, alone);
    fs::permissions(machine.write("bin/curb", "of another machine"), fs::perms::owner_all);
    Program program(machine, with(napping(machine), {{"LD_PRELOAD", preloaded(alone.string())}}));
    REQUIRE(program.answers("hold 64") == "held");
    stays(machine, program, "the command curb is not beside libcurb.so, or cannot be started");
    CHECK(program.answers("check") == "right");
}

TEST_CASE("when host memory runs short a nap ends, and none begins until there is more") {
    const Machine machine;
    const fs::path file = machine.write("meminfo", meminfo(32));
    if (!can_mount()) return;
    Holding program(machine, 2048, napping(machine), [&] { (void)mount_over(file, "/proc/meminfo"); });
    REQUIRE(is_out(machine, program));
    machine.write("meminfo", meminfo(3));
    CHECK(within(20s, [&] { return machine.state(program.pid()) == "running"; }));
    stays(machine, program, "less than a tenth of it would be left");
    CHECK_THAT(log_of(machine), contains("the nap has ended: host memory ran short: resumed "));
    machine.write("meminfo", meminfo(32));
    CHECK(is_out(machine, program));
    // Without room on the GPU it stays where it is.
    Holding other(machine, 79000, {});
    machine.write("meminfo", meminfo(3));
    std::this_thread::sleep_for(2500ms);
    CHECK(machine.state(program.pid()) == "checkpointed");
    REQUIRE(other.answers("give") == "given");
    CHECK(program.answers("check") == "right");
}

TEST_CASE("others see the request of a process that comes back, unless its policy hides it") {
    const bool is_hidden = GENERATE(false, true);
    CAPTURE(is_hidden);
    const Machine machine(Environment{{"CURB_SIM_MEMORY", "2GiB"}});
    Holding program(machine, 512,
                    napping(machine, R"("idle": "200ms")", is_hidden ? R"("share": "none",)" : R"("share": "all",)"));
    REQUIRE(is_out(machine, program));
    Holding filler(machine, 1024);
    program.tell("check");
    REQUIRE(within(10s, [&] { return nap_of(machine, program)["no_room_since"].is_number(); }));
    const pid_t helper = helper_of(program.pid());
    CHECK(within(is_hidden ? 500ms : 10s, [&] { return requests_of(helper) == 1; }) == !is_hidden);
    CHECK(filler.finish() == 0);
    CHECK(program.says() == "right");
    CHECK(program.finish() == 0);
}

TEST_CASE("curb ps shows that a call waits for room to end a nap, and who has the room") {
    const Machine machine(Environment{{"CURB_SIM_MEMORY", "6GiB"}});
    Holding program(machine, 3072, napping(machine));
    REQUIRE(is_out(machine, program));
    Holding other(machine, 3072, {});
    program.tell("check");
    const std::string holder = "; " + other.id() + " (scenarios) holds 3.5";
    CHECK(within(20s, [&] {
        const std::string all = machine.curb({"ps"}).out;
        return all.find("and a call has waited ") != std::string::npos && all.find(holder) != std::string::npos;
    }));
    CHECK_THAT(machine.curb({"ps", program.id()}).out, contains("for room to come back"));
    REQUIRE(other.answers("give") == "given");
    CHECK(program.says() == "right");
}

TEST_CASE("a process that another command brings back is in its GPUs at once, and can nap again") {
    const Machine machine;
    Holding program(machine, 2048);
    machine.succeeds({"suspend", "--until-used", program.id()});
    const pid_t helper = helper_of_napping(machine, program);
    REQUIRE(within(10s, [&] {
        ::kill(helper, SIGSTOP);  // so the nap's thread waits for it
        if (machine.curb({"resume", program.id()}).status == 0) return true;
        ::kill(helper, SIGCONT);  // it was about to release its claim
        return false;
    }));
    CHECK(machine.state(program.pid()) == "running");
    CHECK_THAT(machine.curb({"ps", program.id()}).out, !contains("in host memory"));
    std::thread late([helper] {
        std::this_thread::sleep_for(1s);
        ::kill(helper, SIGCONT);
    });
    const Outcome again = machine.curb({"suspend", "--until-used", program.id()});
    late.join();
    INFO(again.out << again.err);
    CHECK(again.status == 0);
    CHECK(machine.state(program.pid()) == "checkpointed");
    CHECK(program.answers("check") == "right");
}

TEST_CASE("a process may fork in a nap", "[fork-child]") { comes_back_after("fork"); }

TEST_CASE("a process may close its descriptors in a nap", "[foreign-close]") { comes_back_after("close for sockets"); }

TEST_CASE("curb nap and curb suspend --until-used begin a nap, whatever the policy says") {
    const Machine machine;
    Holding program(machine, 2048);
    for (const bool by_name : {false, true}) {
        const Outcome out = by_name ? machine.succeeds({"nap", program.id()})
                                    : machine.succeeds({"suspend", "--until-used", program.id()});
        CHECK_THAT(out.out, contains("naps: 2.5") && contains("its next CUDA call brings it back"));
        CHECK(machine.state(program.pid()) == "checkpointed");
        CHECK_THAT(machine.curb({"ps", program.id()}).out, contains("in host memory until its next CUDA call"));
        CHECK(program.answers("check") == "right");
        CHECK(machine.state(program.pid()) == "running");
    }
    // If the driver refuses, the process stays and the command says why.
    const Machine broken(Environment{{"CURB_SIM_FAULT", "cuCheckpointProcessLock:1:999"}});
    Holding stays(broken, 64);
    const Outcome refused = broken.curb({"suspend", "--until-used", "--json", stays.id()});
    CHECK(refused.status == 1);
    CHECK(Json::parse(refused.out)[0]["suspended"] == false);
    CHECK(stays.answers("check") == "right");
}

TEST_CASE("a process that naps keeps its part of the cap of its job") {
    const Machine machine;
    const auto of_job = [&](Environment environment) {
        return with(std::move(environment), {{"CURB_JOB", machine.folder().string()}, {"CURB_JOB_CAP", "4GiB"}});
    };
    Holding napper(machine, 2048, of_job(napping(machine)));
    REQUIRE(is_out(machine, napper));
    Program other(machine, of_job({{"LD_PRELOAD", preloaded(tested::kLibrary)}}));
    CHECK(other.answers("take 512") == "ok");
    CHECK(other.answers("take 512") == "refused");
    CHECK(machine.state(napper.pid()) == "checkpointed");
    CHECK(napper.answers("check") == "right");
    napper.kill(SIGKILL);
    CHECK(within(10s, [&] { return other.answers("take 512") == "ok"; }));
}

TEST_CASE("a nap that fails in the driver leaves the process as it was") {
    const std::string call = GENERATE("cuCheckpointProcessLock", "cuCheckpointProcessCheckpoint");
    CAPTURE(call);
    const Machine machine({{"CURB_SIM_FAULT", call + ":1:999"}});
    Holding program(machine, 2048, napping(machine));
    REQUIRE(within(20s, [&] { return nap_of(machine, program)["refused"].is_string(); }));
    CHECK(machine.state(program.pid()) == "running");
    CHECK(program.answers("check") == "right");
    CHECK(program.finish() == 0);
}

TEST_CASE("a napping program that ends comes back first, and without room it still ends") {
    const Machine machine(Environment{{"CURB_SIM_MEMORY", "6GiB"}});
    const bool has_room = GENERATE(true, false);
    CAPTURE(has_room);
    Holding program(machine, 1024, napping(machine));
    REQUIRE(is_out(machine, program));
    Program other(machine, {});
    if (!has_room) REQUIRE(other.answers("hold 4096") == "held");
    CHECK(program.finish() == 0);
    CHECK((count(log_of(machine), "the nap has ended") != 0) == has_room);
    CHECK(within(10s, [&] { return helper_of(program.pid()) == 0; }));
}

TEST_CASE("two programs that do not fit together take turns, and neither sees an error") {
    const Machine machine(Environment{{"CURB_SIM_MEMORY", "6GiB"}});
    const Environment environment =
        napping(machine, R"("when_others_wait": "200ms")", R"("gpu": { "*": { "growth": { "wait": "60s" } } },)");
    Program first(machine, environment), second(machine, environment);
    REQUIRE(first.answers("hold 3072") == "held");
    std::this_thread::sleep_for(1s);
    CHECK(machine.state(first.pid()) == "running");  // no process waits
    REQUIRE(second.answers("hold 3072") == "held");
    for (int turn = 0; turn < 5; ++turn) {
        CHECK(first.answers("check") == "right");
        CHECK(second.answers("check") == "right");
    }
    CHECK(first.finish() == 0);
    CHECK(second.finish() == 0);
}

TEST_CASE("equal programs that wait for room get equal shares") {
    const Machine machine;  // of 80 GiB
    const std::string policy =
        machine.write("policy.json", R"({ "version": 1, "gpu": { "*": { "growth": { "wait": "60s" } } } })");
    const Environment environment = under_policy(policy);
    Program programs[3] = {Program(machine, environment), Program(machine, environment), Program(machine, environment)};
    for (Program &one : programs) one.tell("turns 8");
    std::vector<int> given;
    for (Program &one : programs) given.push_back(std::stoi(one.says()));
    INFO(given[0] << ", " << given[1] << ", " << given[2]);
    const auto [least, most] = std::minmax_element(given.begin(), given.end());
    CHECK(*least * 3 >= *most * 2);
    CHECK(*least >= 4);
}

TEST_CASE("a request behind those of other processes says so, and not that the driver is out of memory") {
    const Machine machine;  // of 80 GiB
    Program program(machine, napping(machine, R"("idle": "1h")", R"("gpu": { "*": { "growth": { "wait": "1m" } } },)"));
    ::setenv("XDG_RUNTIME_DIR", machine.runtime().c_str(), 1);  // which places() reads
    {
        const std::string uuid = Json::parse(machine.curb({"ps", "--json"}).out)["gpus"][0]["uuid"];
        curb::control::Ticket ticket(curb::control::places(), uuid, 79 * curb::policy::GiB);
        REQUIRE(ticket.reserve(80 * curb::policy::GiB));
        program.tell("hold 2048");
        CHECK(within(20s, [&] {
            return contents(machine.folder() / "nap.log")
                       .find("waits (at most 1m): requests of other processes that wait for longer come first") !=
                   std::string::npos;
        }));
    }
    CHECK(program.says() == "held");
}

TEST_CASE("a program ends at once if it exits just when a nap begins") {
    const Machine machine;
    const fs::path late = machine.folder() / "late";
    Holding program(machine, 64,
                    with(under_curb(), {{"LD_PRELOAD", preloaded(tested::kLibrary + ":" + tested::kTardyThreads)},
                                        {"THREADS_ARE_LATE", late.native()}}));
    std::ofstream(late) << "yes";
    const Running asks({tested::kCurb, "suspend", "--until-used", program.id()}, machine.environment());
    std::this_thread::sleep_for(1s);  // the nap's thread has not begun yet
    ends(program);
}

TEST_CASE("a suspend by command says at once that the process can start no thread, and succeeds once it can") {
    const bool until_used = GENERATE(true, false);
    CAPTURE(until_used);
    const Machine machine;
    const fs::path none = machine.folder() / "none";
    Program program(machine, with(napping(machine, R"("idle": "1h", "deep": "1h")"),
                                  {{"LD_PRELOAD", preloaded(tested::kLibrary + ":" + tested::kTardyThreads)},
                                   {"NO_THREADS", none.native()}}));
    REQUIRE(program.answers("hold 64") == "held");
    std::ofstream(none) << "yes";
    Words words{"suspend", "--timeout", "10m", program.id()};
    if (until_used) words.emplace_back("--until-used");
    const Outcome outcome = machine.curb(words);
    const Json nap = nap_of(machine, program);
    CHECK_THAT(nap["refused"].is_string() ? nap["refused"].get<std::string>() : "",
               contains("no thread could be started for it"));
    if (until_used) {
        CHECK(outcome.status == 1);
        CHECK_THAT(outcome.err, contains("no thread could be started for it"));
    } else {
        CHECK(outcome.status == 0);  // by the driver
        CHECK(machine.curb({"resume", program.id()}).status == 0);
    }
    fs::remove(none);
    CHECK(program.answers("check") == "right");
    CHECK(machine.succeeds(words).err.empty());
    CHECK(machine.held(program.pid()) < kContext + 64);
    if (!until_used) CHECK(machine.curb({"resume", program.id()}).status == 0);
    CHECK(program.answers("check") == "right");
    CHECK(program.finish() == 0);
}
