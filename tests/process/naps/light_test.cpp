// Light naps: curb itself moves the memory that the program has mapped, and the contexts stay. Whatever is compared
// here has gone through host memory.
#include <sched.h>
#include <sys/resource.h>

#include "ceiling.hpp"
#include "naps.hpp"

namespace {

const std::string kLightAlone = R"("idle": "200ms", "deep": "never")", kLater = R"("idle": "1h", "deep": "never")";

Environment lightly(const Machine &machine, const std::string &more = "") {
    return napping(machine, kLightAlone + more);
}
// A program with 24 MiB of memory, half of it zeros.
class Mapping : public Program {
  public:
    Mapping(const Machine &machine, const Environment &more) : Program(machine, more) {
        REQUIRE(answers("map 24") == "mapped");
    }
};
// Waits until it is out but for its context.
bool is_lightly_out(const Machine &machine, const Program &program) {
    return within(30s,
                  [&] { return machine.held(program.pid()) == kContext && nap_of(machine, program)["out"] == true; });
}

// Makes one thread of the program's copy all, a chunk after the other.
void on_one_processor() {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    sched_setaffinity(0, sizeof one, &one);
}

// Returns the bytes of host memory that a process has.
std::int64_t resident(pid_t pid) {
    std::int64_t kib = 0;
    std::ifstream status("/proc/" + std::to_string(pid) + "/status");
    for (std::string line; std::getline(status, line);)
        if (line.starts_with("VmRSS:")) kib = std::stoll(line.substr(6));
    return kib * 1024;
}

}  // namespace

TEST_CASE("memory of the program's own mappings leaves the GPU, and each call that follows finds it as it was") {
    const Machine machine;
    Mapping program(machine, lightly(machine));
    const std::int64_t before = machine.held(program.pid());
    CHECK(before == kContext + 24);
    for (int i = 0; i < 5; ++i) {
        REQUIRE(is_lightly_out(machine, program));
        CHECK(machine.state(program.pid()) == "running");
        const Json nap = nap_of(machine, program);
        CHECK(nap["light"]["bytes"] == 12 * kMiB);
        CHECK(nap["zeros"] == 12 * kMiB);
        CHECK(nap["bytes"] == 24 * kMiB);
        CHECK(program.answers("check") == "right");
        CHECK(program.answers("change") == "changed");
    }
    CHECK(within(10s, [&] { return program.answers("check") == "right" && machine.held(program.pid()) == before; }));
    CHECK(program.finish() == 0);
}

TEST_CASE("a copy of pageable memory that lasts longer than the idle time ends before the memory leaves") {
    const Machine machine;
    Mapping program(machine, lightly(machine));
    REQUIRE(program.answers("begin to check") == "ok");
    CHECK_FALSE(within(2s, [&] { return machine.held(program.pid()) == kContext; }));
    CHECK(program.answers("end checking") == "right");
    CHECK(is_lightly_out(machine, program));
    CHECK(program.answers("check") == "right");
    CHECK(program.finish() == 0);
}

TEST_CASE("a nap that lasts becomes deep, and all comes back") {
    const Machine machine;
    Mapping program(machine, napping(machine, R"("idle": "200ms", "deep": "500ms")"));
    REQUIRE(program.answers("hold 64") == "held");
    const std::int64_t before = machine.held(program.pid());
    for (int i = 0; i < 3; ++i) {
        REQUIRE(is_out(machine, program));
        CHECK(machine.held(program.pid()) == kLeft);
        CHECK(program.answers("check") == "right");
    }
    CHECK(within(10s, [&] { return program.answers("check") == "right" && machine.held(program.pid()) == before; }));
    CHECK_THAT(log_of(machine), contains("a nap begins") && contains("the nap is deep"));
    CHECK(program.finish() == 0);
}

TEST_CASE("where the driver cannot move the process, curb moves its part and says why the rest stays") {
    const Environment why = GENERATE(older_driver(), Environment{{"CURB_SIM_MPS", "1"}});
    const Machine machine(why);
    Mapping program(machine, napping(machine, R"("idle": "200ms", "deep": "0s")"));
    REQUIRE(within(30s, [&] { return machine.held(program.pid()) == kContext; }));
    CHECK(within(30s, [&] {
        const Json nap = nap_of(machine, program);
        return nap["out"] == true && nap["stays"].is_string() &&
               nap["stays"].get<std::string>().find("the rest: ") != std::string::npos;
    }));
    CHECK(program.answers("check") == "right");
    CHECK(program.finish() == 0);
}

TEST_CASE("memory that others may map stays, and curb ps and doctor say why before the first nap") {
    struct Case {
        const char *library;
        Environment more;
        const char *why;
    };
    const auto one = GENERATE(Case{"libuct_cuda.so.0", {}, "UCX gives its peers"},
                              Case{"libnvshmem_host.so.3", {}, ""},  // loaded by programs that never use it
                              Case{"libnone.so", {{"WORLD_SIZE", "2"}, {"RANK", "0"}}, "one of several ranks"});
    CAPTURE(one.library);
    const Machine machine;
    const Environment idle = napping(machine, kLater);
    Program program(machine, with(with(idle, with_library(machine, one.library)), one.more));
    REQUIRE(program.answers("hold 64") == "held");
    const Json why = nap_of(machine, program)["not_light"];
    CHECK_THAT(why.is_string() ? why.get<std::string>() : "", contains(one.why));
    CHECK(why.is_string() == (*one.why != '\0'));
    if (*one.why != '\0') CHECK_THAT(machine.curb({"doctor", program.id()}).out, contains(one.why));
}

TEST_CASE("a process keeps the host memory of a nap for the next one, until the host runs short") {
    const Machine machine;
    const fs::path file = machine.write("meminfo", meminfo(32));
    if (!can_mount()) return;
    Program program(machine, lightly(machine), [&] { (void)mount_over(file, "/proc/meminfo"); });
    REQUIRE(program.answers("map 24") == "mapped");
    for (int i = 0; i < 2; ++i) {
        REQUIRE(is_lightly_out(machine, program));
        CHECK(nap_of(machine, program)["kept"] == 0);  // it is in use
        CHECK(program.answers("check") == "right");
    }
    REQUIRE(program.answers("utilise 50") == "ok");  // so that it does not nap again
    CHECK(nap_of(machine, program)["kept"] == 12 * kMiB);
    const std::int64_t before = resident(program.pid());
    machine.write("meminfo", meminfo(3));
    CHECK(within(20s, [&] { return nap_of(machine, program)["kept"] == 0; }));
    CHECK(resident(program.pid()) < before - 8 * kMiB);
}

TEST_CASE("memory stays for which the policy allows no host memory, and pages of zeros need none") {
    const Machine machine;
    Program program(machine, lightly(machine, R"(, "host_memory": "8MiB")"));
    REQUIRE(program.answers("map 24") == "mapped");
    REQUIRE(within(30s, [&] { return machine.held(program.pid()) == kContext + 12; }));
    CHECK_THAT(nap_of(machine, program)["stays"].get<std::string>(), contains("for which host memory has no room"));
    CHECK(program.answers("check") == "right");
}

TEST_CASE("if host memory runs out during a move, what has been copied leaves, and the rest stays") {
    const Machine machine;
    Environment scarce = lightly(machine);
    scarce["LD_PRELOAD"] += ":" + tested::kScarceMemory;
    scarce["CHUNKS_OF_MEMORY"] = "14";  // of the 24 of its six pieces
    Program program(machine, scarce, on_one_processor);
    for (int i = 0; i < 3; ++i) REQUIRE(program.answers("map 32") == "mapped");
    REQUIRE(within(30s, [&] { return nap_of(machine, program)["out"] == true; }));
    const Json nap = nap_of(machine, program);
    CHECK_THAT(nap["stays"].get<std::string>(), contains("48 MiB for which host memory has no room"));
    CHECK(nap["bytes"] == 48 * kMiB);
    CHECK(nap["light"]["bytes"] == 24 * kMiB);
    CHECK(machine.held(program.pid()) == kContext + 48);
    CHECK(program.answers("check") == "right");
    CHECK(program.finish() == 0);
}

TEST_CASE("a copy that fails when others are done leaves all memory as it was, or out if the driver does not map it") {
    const std::string map_fails = GENERATE("", ",cuMemMap:49:999,cuMemMap:50:999");  // the program itself maps 48 times
    CAPTURE(map_fails);
    const Machine machine;
    const fs::path calls = machine.folder() / "calls";
    Program program(machine,
                    with(napping(machine, kLater),
                         {{"CURB_SIM_CALLS", calls}, {"CURB_SIM_FAULT", "cuMemcpyDtoHAsync_v2:31:999" + map_fails}}));
    for (int i = 0; i < 16; ++i) REQUIRE(program.answers("map 4") == "mapped");
    const std::int64_t before = machine.held(program.pid());
    machine.write("calls", "");
    const Outcome command = machine.curb({"suspend", "--until-used", program.id()});
    const std::string called = contents(calls);
    fs::remove(calls);
    CHECK_THAT(called, contains("cuMemUnmap"));  // a block that is copied becomes inaccessible beside the others
    CHECK_THAT(called, !contains("cuMemRelease"));
    CHECK(machine.held(program.pid()) == before);
    const bool stays_out = !map_fails.empty();
    CHECK((command.status == 0) == stays_out);
    CHECK(nap_of(machine, program)["out"] == stays_out);
    CHECK(program.answers("check") == "right");
    CHECK(nap_of(machine, program)["out"] == false);
    REQUIRE(machine.curb({"suspend", "--until-used", program.id()}).status == 0);
    CHECK(machine.held(program.pid()) == kContext);
    CHECK(program.answers("check") == "right");
    CHECK(program.finish() == 0);
}

TEST_CASE("if one GPU has lost its context and the copy to another fails once, all comes back and the log says both") {
    const Machine machine(Environment{{"CURB_SIM_GPUS", "2"}});
    // The memory of the second GPU comes back first, by one copy. The nap synchronizes both contexts before.
    const std::string ends_second =
        "cuMemcpyHtoDAsync_v2:1:700,cuCtxSynchronize:3:700,cuCtxSynchronize:4:700,cuCtxSynchronize:5:700";
    Program program(machine,
                    with(napping(machine, kLater), {{"CURB_SIM_FAULT", ends_second + ",cuMemcpyHtoDAsync_v2:2:999"}}));
    REQUIRE(program.answers("hold 2 1") == "held");
    REQUIRE(program.answers("hold 2 0") == "held");
    REQUIRE(machine.curb({"suspend", "--until-used", program.id()}).status == 0);
    CHECK(machine.held(program.pid()) == 2 * kContext);
    CHECK(program.answers("check") == "wrong");  // of the second GPU
    CHECK(machine.held(program.pid()) == 2 * kContext + 4);
    CHECK_THAT(log_of(machine),
               contains("cannot come back to its GPUs yet") && contains("an error has ended a context"));
}

TEST_CASE("a program that ends while it is lightly out does not bring its memory back") {
    const Machine machine;
    Mapping program(machine, lightly(machine));
    REQUIRE(is_lightly_out(machine, program));
    CHECK(program.finish() == 0);
    CHECK_THAT(log_of(machine), !contains("the nap has ended"));
}

TEST_CASE("a call in an exit handler ends a light nap, and one after the end of the driver returns") {
    const Machine machine;
    // The handlers run after those of curb's thread that asks NVML, which the first nap registers.
    Mapping program(machine, with(lightly(machine), {{"CALLS_LAST", "1"}}));
    const bool is_used = GENERATE(true, false);
    if (is_used) REQUIRE(program.answers("check at exit") == "ok");
    REQUIRE(is_lightly_out(machine, program));
    ends(program);
}

TEST_CASE("a child of a program that is lightly out does not use its memory, and the program comes back") {
    const Machine machine;
    Mapping program(machine, lightly(machine));
    REQUIRE(is_lightly_out(machine, program));
    CHECK_FALSE(program.answers("fork and allocate").empty());
    CHECK(program.answers("check") == "right");
    CHECK(program.finish() == 0);
}

TEST_CASE("a program that is killed while it is lightly out leaves nothing") {
    const Machine machine;
    Mapping program(machine, lightly(machine));
    REQUIRE(is_lightly_out(machine, program));
    program.kill(SIGKILL);
    CHECK(within(10s, [&] { return machine.held(program.pid()) == 0; }));
}

TEST_CASE("a program whose room others have taken waits for it, and comes back when they free it") {
    const Machine machine(Environment{{"CURB_SIM_MEMORY", "1280MiB"}});
    Program program(machine, lightly(machine));
    REQUIRE(program.answers("map 64") == "mapped");
    REQUIRE(is_lightly_out(machine, program));
    Holding other(machine, 200, {{"LD_PRELOAD", ""}});
    program.tell("check");
    CHECK(within(30s, [&] { return nap_of(machine, program)["no_room_since"] != 0; }));
    CHECK(machine.held(program.pid()) == kContext);
    CHECK(other.answers("give") == "given");
    CHECK(program.says() == "right");
    CHECK(program.finish() == 0);
}

TEST_CASE("curb suspend moves what curb can move itself, then what the driver can, and curb resume brings back both") {
    const bool naps = GENERATE(false, true);
    CAPTURE(naps);
    const Machine machine;
    Mapping program(machine, napping(machine, naps ? kLightAlone : kLater));
    REQUIRE(program.answers("hold 64") == "held");
    const std::int64_t before = kContext + 24 + 64;
    if (naps) REQUIRE(is_lightly_out(machine, program));
    const Outcome out = machine.succeeds({"suspend", program.id()});
    CHECK_THAT(out.out, contains("88 MiB to host memory by curb in") && contains("by the driver in"));
    CHECK(machine.state(program.pid()) == "checkpointed");
    CHECK(machine.held(program.pid()) == kLeft);
    program.tell("check");
    CHECK(program.says(500ms).empty());
    CHECK_THAT(machine.curb({"ps", program.id()}).out, contains("suspended") && !contains("until its next CUDA call"));
    CHECK_THAT(machine.curb({"suspend", program.id()}).err, contains("it is suspended already"));
    const Outcome back = machine.succeeds({"resume", program.id()});
    CHECK_THAT(back.out,
               contains("back on the device by the driver in") && contains("88 MiB back on the device by curb"));
    CHECK(program.says() == "right");
    CHECK((naps || machine.held(program.pid()) == before));
    CHECK(machine.records(program.pid()).empty());
    CHECK(program.finish() == 0);
}

TEST_CASE(
    "where the driver cannot move a process, curb suspend moves out curb's part, says so, and curb resume ends it") {
    const bool is_listed = GENERATE(true, false);
    const Environment why = is_listed ? GENERATE(older_driver(), Environment{{"CURB_SIM_MPS", "1"}})
                                      : Environment{{"CURB_SIM_NVML", "nopids"}};
    const Machine machine(why);
    Mapping program(machine, napping(machine, kLater));
    const Outcome out = machine.succeeds({"suspend", program.id()});
    CHECK_THAT(out.out, contains("24 MiB to host memory by curb in"));
    CHECK_THAT(out.out, contains(is_listed ? "has not moved the rest, 518 MiB: " : "has not moved the rest: "));
    if (why == older_driver()) CHECK_THAT(out.out, contains("that takes 570 or newer"));
    CHECK(machine.held(program.pid()) == kContext);
    program.tell("check");
    CHECK(program.says(500ms).empty());
    CHECK_THAT(machine.curb({"suspend", program.id()}).err, contains("it is suspended already"));
    CHECK_THAT(machine.succeeds({"resume", "--tree", std::to_string(getpid())}).out,
               contains("24 MiB back on the device by curb"));
    CHECK(program.says() == "right");
    CHECK(machine.records(program.pid()).empty());
    machine.succeeds({"suspend", program.id()});
    CHECK(program.finish() == 0);
}

TEST_CASE("curb's part comes back if the suspend may write no file, and the answer says so", "[bare]") {
    const Machine machine(older_driver());
    Mapping program(machine, napping(machine, kLater));
    const auto no_files = [] {
        const rlimit none{0, 0};
        ::setrlimit(RLIMIT_FSIZE, &none);
    };
    Running curb({tested::kCurb, "suspend", "--json", program.id()}, machine.environment(), no_files);
    CHECK(Json::parse(curb.says())[0]["process"] == "unchanged");
    CHECK(curb.end() == 1);
    CHECK(program.answers("check") == "right");
    CHECK(program.finish() == 0);
}

TEST_CASE("after a suspend by the driver alone, curb moves what it can itself at the next one") {
    const Machine machine;
    Program program(machine, napping(machine, R"("idle": "1h", "deep": "10s")"));
    machine.succeeds({"nap", program.id()});  // of a process without memory that curb could move
    REQUIRE(is_out(machine, program));
    machine.succeeds({"suspend", program.id()});
    machine.succeeds({"resume", program.id()});
    REQUIRE(program.answers("map 24") == "mapped");
    CHECK_THAT(machine.succeeds({"suspend", program.id()}).out, contains("24 MiB to host memory by curb in"));
    machine.succeeds({"resume", program.id()});
    CHECK(program.answers("check") == "right");
    CHECK(program.finish() == 0);
}

TEST_CASE("a program that calls the driver is suspended by the driver alone") {
    const Machine machine;
    Mapping program(machine, napping(machine, kLater));
    REQUIRE(program.answers("call on 0") == "ok");
    CHECK_THAT(machine.succeeds({"suspend", program.id()}).out, !contains("by curb"));
    machine.succeeds({"resume", program.id()});
    CHECK_THAT(program.answers("returned"), contains("0 wrong"));
    CHECK(program.answers("check") == "right");
}

TEST_CASE("curb suspend takes over a nap at each moment of it") {
    const Machine machine;
    Program program(machine, napping(machine, R"("idle": "200ms", "deep": "never")"));
    REQUIRE(program.answers("hold 512") == "held");
    const bool is_back = GENERATE(false, true);  // or a nap may be on its way back
    for (const auto moment : {0ms, 100ms, 150ms, 200ms, 250ms, 400ms}) {
        CAPTURE(is_back, moment.count());
        program.tell("check");
        if (is_back) REQUIRE(program.says() == "right");
        std::this_thread::sleep_for(moment);
        machine.succeeds({"suspend", program.id()});
        machine.succeeds({"resume", program.id()});
        if (!is_back) REQUIRE(program.says() == "right");
    }
}

TEST_CASE("after a suspend that is killed half way curb resume brings back what curb has moved too") {
    const Machine machine;
    Mapping program(machine, napping(machine, kLater));
    Running curb(joined({tested::kCurb}, {"suspend", program.id()}), machine.environment());
    REQUIRE(within(20s, [&] { return machine.state(program.pid()) == "locked"; }));
    curb.kill(SIGKILL);
    CHECK(curb.end() == 128 + SIGKILL);
    program.tell("check");
    CHECK(program.says(500ms).empty());
    machine.succeeds({"resume", program.id()});
    CHECK(program.says() == "right");
    CHECK(machine.held(program.pid()) == kContext + 24);
}

TEST_CASE("a wrong address of a program is reported once, with the way out, where curb makes the program's memory") {
    const bool is_light = GENERATE(true, false);
    CAPTURE(is_light);
    const Machine machine;
    Program program(machine, napping(machine, is_light ? kLater : R"("idle": "1h")"));
    REQUIRE(program.answers("hold 64") == "held");
    for (int i = 0; i < 2; ++i) CHECK(program.answers("fail by a wrong address") == "error");
    const std::string said = log_of(machine);
    const std::size_t first = said.find("CUDA_ERROR_ILLEGAL_ADDRESS");
    CHECK((first != std::string::npos) == is_light);
    if (!is_light) return;
    CHECK(said.find("CUDA_ERROR_ILLEGAL_ADDRESS", first + 1) == std::string::npos);
    CHECK_THAT(machine.curb({"doctor", program.id()}).out, contains("CUDA_ERROR_ILLEGAL_ADDRESS"));
}

TEST_CASE("curb resume ends a light nap") {
    const Machine machine;
    Mapping program(machine, lightly(machine));
    REQUIRE(is_lightly_out(machine, program));
    CHECK_THAT(machine.succeeds({"resume", program.id()}).out, contains("24 MiB back on the device by curb"));
    CHECK(program.answers("check") == "right");
    CHECK(program.finish() == 0);
}

TEST_CASE("where the policy forbids the driver's move, a process without memory that curb can move takes no nap") {
    const Machine machine;
    Program program(machine, lightly(machine));
    REQUIRE(program.answers("managed 64") == "ok");
    CHECK(within(30s, [&] { return nap_of(machine, program)["refused"].is_string(); }));
    CHECK_THAT(nap_of(machine, program)["refused"].get<std::string>(), contains("suspend.deep is \"never\""));
    CHECK(machine.state(program.pid()) == "running");
}
