// Several users on one simulated machine: one order for all, and naps for each other.
#include "ceiling.hpp"
#include "naps.hpp"

namespace {

constexpr uid_t kFirst = 54'331, kSecond = 54'332;

// A machine that these users may use, and a policy that they may read.
struct Shared {
    Shared(const std::string &memory, const std::string &suspend, const std::string &growth)
        : machine({{"CURB_SIM_MEMORY", memory}}) {
        policy = napping(machine, suspend, R"("gpu": { "*": { "growth": )" + growth + " } },");
        open_to_all(machine);
    }
    [[nodiscard]] Program program_of(uid_t user) const { return Program(machine, policy, becoming(user)); }
    const Machine machine;
    Environment policy;
};

}  // namespace

TEST_CASE("an idle process leaves for another user's request, and comes back when that is done") {
    if (!can_become_another()) return;
    const bool is_light = GENERATE(true, false);
    CAPTURE(is_light);
    const Shared shared("1500MiB",
                        is_light ? R"("when_others_wait": "200ms", "deep": "never")" : R"("when_others_wait": "200ms")",
                        R"({ "wait": "60s" })");
    Program idle = shared.program_of(kFirst), other = shared.program_of(kSecond);
    REQUIRE(idle.answers("hold 300") == "held");
    const auto asked = std::chrono::steady_clock::now();
    REQUIRE(other.answers("hold 300") == "held");
    UNSCOPED_INFO("served after " << (std::chrono::steady_clock::now() - asked) / 1ms << " ms");
    CHECK(within(10s, [&] { return shared.machine.held(idle.pid()) <= kContext; }));
    for (int i = 0; i < 3; ++i) {
        CHECK(idle.answers("check") == "right");
        CHECK(other.answers("check") == "right");
    }
    CHECK(idle.finish() == 0);
    CHECK(other.finish() == 0);
}

TEST_CASE("the later request of a user who holds less goes before the earlier ones of a user who holds more") {
    if (!can_become_another()) return;
    const Shared shared("80GiB", "", R"({ "wait": "60s" })");
    Program filler(shared.machine, {});
    REQUIRE(filler.answers("hold 40000") == "held");
    std::vector<std::unique_ptr<Program>> many;
    for (int i = 0; i < 10; ++i) {
        many.push_back(std::make_unique<Program>(shared.machine, shared.policy, becoming(kFirst)));
        REQUIRE(many.back()->answers("hold 2048") == "held");
    }
    for (const auto &one : many) {
        one->tell("hold 36000");
        REQUIRE(within(20s, [&] { return requests_of(one->pid()) == 1; }));
    }
    Program other = shared.program_of(kSecond);
    other.tell("hold 36000");
    REQUIRE(within(20s, [&] { return requests_of(other.pid()) == 1; }));
    CHECK(filler.answers("give") == "given");
    CHECK(other.says() == "held");
    for (const auto &one : many) CHECK(one->says(0ms).empty());
    CHECK(other.answers("give") == "given");
    CHECK(many.front()->says() == "held");  // among the first user's, who came first
}

TEST_CASE("a machine for five users: each has a fifth of the GPU, whatever its policy says, and root has all") {
    if (!can_become_another()) return;
    const Machine machine;  // of 80 GiB
    const Ceiling ceiling(machine.succeeds({"policy", "init", "--machine", "5", "-"}).out);
    if (!can_mount()) return;
    fs::permissions(ceiling.etc(), fs::perms(0755));
    fs::copy_file("/etc/passwd", ceiling.etc() / "passwd");
    open_to_all(machine);
    const auto program_of = [&](uid_t user) {
        const auto become = user == 0 ? std::function<void()>() : becoming(user);
        return std::make_unique<Program>(machine, with(under_curb(), {{"CURB_CAP", "100%"}, {"CURB_WAIT", "0s"}}),
                                         [&ceiling, become] {
                                             if (!ceiling.put_in_place()) ::_exit(1);
                                             if (become) become();
                                         });
    };
    std::vector<std::unique_ptr<Program>> programs;
    for (uid_t user = kFirst; user < kFirst + 5; ++user) {
        CAPTURE(user);
        programs.push_back(program_of(user));
        CHECK(programs.back()->answers("hold 10000") == "held");
        programs.push_back(program_of(user));  // of the same user: both are within one share
        CHECK(programs.back()->answers("hold 6000") == "refused");
    }
    CHECK(programs.front()->answers("give") == "given");
    CHECK(programs[1]->answers("hold 9000") == "held");
    programs.push_back(program_of(0));
    CHECK(programs.back()->answers("hold 20000") == "held");
}

TEST_CASE("after a logout has deleted its folder, a process can be asked again") {
    const Machine machine;
    Holding program(machine, 64);
    REQUIRE(machine.curb({"release", program.id()}).status == 0);
    const bool is_new_login = GENERATE(true, false);
    fs::remove_all(is_new_login ? machine.runtime() / "curb" : machine.runtime());
    CHECK(within(30s, [&] { return machine.curb({"release", program.id()}).status == 0; }));
    CHECK(program.answers("check") == "right");
    CHECK(program.finish() == 0);
}
