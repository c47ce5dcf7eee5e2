// The gate: every call of a suspended program waits in curb, however the program reaches the driver. If a
// synchronisation or a query gets through, the simulated driver ends the program by SIGSEGV, as the real one does.
#include "capped.hpp"
#include "control/client.hpp"
#include "naps.hpp"
#include "simulated.hpp"

namespace {

using namespace curb;

constexpr const char *kCalls = "11", *kWaiting = "1";  // all of all_calls(); those that do not wait

void suspend(const Machine &machine, const Program &program) {
    CHECK_THAT(machine.succeeds({"suspend", program.id()}).out, contains("it waits in its next CUDA call"));
}
void resume(const Machine &machine, const Program &program, const Environment &more = {}) {
    machine.succeeds({"resume", program.id()}, more);
}
control::GateReport ask_gate(const Program &program, std::optional<std::uint64_t> close_for) {
    control::Reply reply;
    REQUIRE(within(20s, [&] {  // its control socket may come later than its first answer
        reply = control::ask(program.pid(), control::GateRequest{close_for}, 10s);
        return std::holds_alternative<control::GateReport>(reply);
    }));
    return std::get<control::GateReport>(reply);
}

// Suspends the program, or lets it nap. A release that is requested then must run after its return.
void releases_when_it_is_back(bool naps) {
    const Machine machine;
    Holding program(machine, 64, napping(machine, naps ? R"("idle": "200ms")" : ""));
    REQUIRE(program.answers("pool") == "ok");
    if (!naps) suspend(machine, program);
    REQUIRE(is_out(machine, program));
    REQUIRE(::kill(program.pid(), SIGUSR1) == 0);
    std::this_thread::sleep_for(500ms);
    CHECK(machine.state(program.pid()) == "checkpointed");
    if (!naps) resume(machine, program);
    CHECK(program.answers("check") == "right");
    CHECK(within(10s, [&] { return log_of(machine).find("released 256 MiB in ") != std::string::npos; }));
    CHECK_THAT(log_of(machine), !contains("released -"));
}

}  // namespace

TEST_CASE("calls of a suspended program wait, and succeed after the resume, in every way to reach the driver") {
    const std::string way = GENERATE("0", "1", "2");  // linked, dlsym, cuGetProcAddress
    CAPTURE(way);
    const Machine machine;
    Program program(machine);
    REQUIRE(program.answers("prepare " + way) == "ok");
    suspend(machine, program);
    CHECK(program.answers("begin") == kWaiting);
    CHECK(program.answers("begin") == kWaiting);
    resume(machine, program);
    CHECK(program.answers("returned") == std::string(kCalls) + " returned, 0 wrong");
    CHECK(program.answers("check") == "right");
    CHECK(program.finish() == 0);
}

TEST_CASE("a program can be suspended again and again while its threads call the driver") {
    const std::string way = GENERATE("0", "2");
    const Machine machine;
    Program program(machine);
    REQUIRE(program.answers("call on " + way) == "ok");
    for (int i = 0; i < 8; ++i) {
        suspend(machine, program);
        resume(machine, program);
    }
    CHECK(program.answers("returned") == std::string(kCalls) + " returned, 0 wrong");
    CHECK(program.answers("check") == "right");
}

TEST_CASE("a program is not suspended while a call is under way that the driver's lock would not hold back") {
    const Machine machine;
    Program program(machine);
    REQUIRE(program.answers("compute") == "ok");  // 3 s
    program.tell("synchronize");
    fails(machine.curb({"suspend", "--timeout", "200ms", program.id()}),
          contains("a call of cuCtxSynchronize did not return within 200ms"));
    CHECK(program.says() == "ok");
    CHECK(machine.state(program.pid()) == "running");
    suspend(machine, program);
    resume(machine, program);
}

TEST_CASE("a program is not suspended while it asks for its free memory, which would fail while it is out") {
    const Machine machine;
    Program program(machine);
    REQUIRE(program.answers("begin to ask for memory") == "ok");
    fails(machine.curb({"suspend", "--timeout", "200ms", program.id()}),
          contains("a call of cuMemGetInfo_v2 did not return within 200ms"));
    CHECK(program.answers("end the call") == "ok");
    suspend(machine, program);
    resume(machine, program);
}

// Otherwise the driver would hold back the next call of the allocation, and no call would end a nap.
TEST_CASE("a program is not suspended in the middle of an allocation of memory that curb can move") {
    const Machine machine;
    Program program(machine, napping(machine, R"("idle": "1h", "deep": "1h")"));
    REQUIRE(program.answers("hold 64") == "held");
    REQUIRE(program.answers("begin to allocate") == "ok");
    fails(machine.curb({"suspend", "--timeout", "200ms", program.id()}),
          contains("a call of cuMemAlloc_v2 did not return within 200ms"));
    CHECK(program.answers("end the call") == "ok");
    suspend(machine, program);
    resume(machine, program);
}

// A function of the program that the driver calls needs a mutex, whose owner waits at the gate.
TEST_CASE("a nap that would wait for a call at the gate is given up within a second") {
    const Machine machine;
    Program program(machine);
    REQUIRE(program.answers("lock before submitting") == "ok");
    Begun curb = machine.begin_curb({"suspend", "--until-used", "--timeout", "1m", program.id()});
    REQUIRE(within(20s, [&] { return machine.state(program.pid()) == "locked"; }));
    CHECK(program.answers("call and unlock") == "ok");
    fails(curb.end(), contains("work that it has submitted did not end within 1s"));
    CHECK(machine.state(program.pid()) == "running");
}

TEST_CASE("a command cannot close the gate while a nap moves the process", "[patience]") {
    const Machine machine(Environment{{"CURB_SIM_LATENCY", "h100"}});
    Program program(machine, napping(machine, R"("idle": "500ms")"));
    REQUIRE(program.answers("hold 6144") == "held");
    REQUIRE(within(20s, [&] { return machine.state(program.pid()) == "locked"; }));
    CHECK_THAT(ask_gate(program, 60'000).waits_for, contains("by which a nap begins"));
}

TEST_CASE("the gate opens by itself when no command keeps it closed and the program is in its GPUs") {
    const Machine machine;
    Holding program(machine, 64);
    SECTION("the command was killed before anything was moved") {
        const auto begun = std::chrono::steady_clock::now();
        const control::GateReport report = ask_gate(program, 1500);
        CHECK(report.closed);
        CHECK(report.waits_for.empty());
        CHECK(program.answers("check") == "right");
        CHECK(std::chrono::steady_clock::now() - begun >= 1500ms);
    }
    SECTION("another tool brought it back") {
        suspend(machine, program);
        program.tell("check");
        CHECK(program.says(300ms).empty());
        resume(machine, program, {{"LD_PRELOAD", ""}, {"XDG_RUNTIME_DIR", "/nonexistent"}});
        CHECK(program.says() == "right");
    }
}

TEST_CASE("a suspended program may exit, fork and be killed", "[fork-child]") {
    const Machine machine;
    Holding program(machine, 64);
    const bool calls = GENERATE(false, true);
    if (calls) REQUIRE(program.answers("prepare 1") == "ok");
    suspend(machine, program);
    if (calls) {
        CHECK(program.answers("begin") == kWaiting);
        program.kill(SIGTERM);
        CHECK(program.end() == 128 + SIGTERM);
        return;
    }
    SECTION("fork") {
        CHECK(program.answers("fork") == "ok");
        resume(machine, program);
        CHECK(program.answers("check") == "right");
    }
    SECTION("exit") { CHECK(program.finish() == 0); }
}

TEST_CASE("a program with a library that bypasses the gate is not suspended, and the library is named", "[bare]") {
    const Machine machine;
    const std::string library = tested::kPlugins + "/libplugin_bound.so";
    Capped process(machine.runtime(),
                   {{tested::kPluginHost, "CUDA"}, with(machine.environment(), {{"CURB_CAP", "8GiB"}}), {}, true});
    REQUIRE(process("deep " + library) == "0");
    fails(machine.curb({"suspend", process.id()}), contains("CUDA calls would bypass curb") && contains(library));
    CHECK(process("deep " + library) == "0");
}

TEST_CASE("a program that closes libcuda more often than it opened it still reaches the driver", "[bare]") {
    const Machine machine;
    Capped process(machine.runtime(),
                   {{tested::kPluginHost, "CUDA"}, with(machine.environment(), {{"CURB_CAP", "8GiB"}}), {}, true});
    CHECK(process("close 5") == "0");
}

TEST_CASE("after a suspend an idle process still releases by itself, and its cache is still swept") {
    const Machine machine;
    const std::string policy = machine.write("policy.json", R"({ "version": 1, "gpu": { "*": { "cap": "8GiB",
            "cache": { "max": "1GiB", "idle": "3s" } } }, "release": { "idle": "3s" } })");
    Holding program(machine, 64, under_policy(policy));
    const bool from_cache = GENERATE(true, false);
    CAPTURE(from_cache);
    const std::int64_t before = machine.held(program.pid());
    if (from_cache) {
        REQUIRE(program.answers("take 256") == "ok");
        REQUIRE(program.answers("drop") == "ok");
    } else {
        REQUIRE(program.answers("pool") == "ok");
    }
    REQUIRE(machine.held(program.pid()) == before + 256);
    suspend(machine, program);
    std::this_thread::sleep_for(5s);
    resume(machine, program);
    CHECK(within(30s, [&] { return machine.held(program.pid()) <= before; }));
}

TEST_CASE("a release that is requested opens a gate whose command was killed", "[kernel]") {
    const Machine machine;
    Holding program(machine, 64);
    const std::int64_t before = machine.held(program.pid());
    REQUIRE(program.answers("pool") == "ok");
    CHECK(ask_gate(program, 1500).closed);
    REQUIRE(::kill(program.pid(), SIGUSR1) == 0);
    CHECK(within(10s, [&] { return machine.held(program.pid()) == before; }));
}

TEST_CASE("a release that is requested during a suspend runs after it") { releases_when_it_is_back(false); }

TEST_CASE("a release that is requested in a nap runs after it", "[kernel]") { releases_when_it_is_back(true); }
