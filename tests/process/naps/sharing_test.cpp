// Blocks that curb moves, shared between processes by CUDA IPC: the handle is curb's, and the memory crosses by a
// descriptor.
#include <signal.h>
#include <sys/resource.h>

#include "control/board.hpp"
#include "naps.hpp"

namespace {

// Two programs that nap, of which one shares a block of 64 MiB, full of ones.
class Sharing {
  public:
    Sharing() {
        REQUIRE(maker.answers("take 64") == "ok");
        REQUIRE(maker.answers("write block 1") == "ok");
        handle = maker.answers("export block");
    }
    std::string opens() { return opens(handle); }
    std::string opens(const std::string &one) {
        user.tell("open block");
        return user.answers(one);
    }
    // Waits until the maker is out, but for so many MiB.
    bool is_out(std::int64_t but = 0) {
        return within(
            30s, [&] { return machine.held(maker.pid()) == kContext + but && nap_of(machine, maker)["out"] == true; });
    }

    const Machine machine;
    const Environment naps = napping(machine, R"("idle": "200ms", "deep": "never")");
    Program maker{machine, naps}, user{machine, naps};
    std::string handle;
};

}  // namespace

TEST_CASE("two processes that share a block see each other's writes, and the one that ends last has it") {
    Sharing both;
    REQUIRE(both.opens() == "ok");
    CHECK(both.user.answers("read block") == "1");
    CHECK(both.user.answers("write block 2") == "ok");
    CHECK(both.maker.answers("read block") == "2");
    const bool maker_ends = GENERATE(true, false), by_signal = GENERATE(true, false);
    CAPTURE(maker_ends, by_signal);
    Program &first = maker_ends ? both.maker : both.user, &last = maker_ends ? both.user : both.maker;
    if (by_signal)
        first.kill(SIGKILL);
    else
        CHECK(first.finish() == 0);
    CHECK(last.answers("read block") == "2");
    CHECK(last.answers("write block 3") == "ok");
    CHECK(last.answers("read block") == "3");
    if (maker_ends) {
        CHECK(both.user.answers("close block") == "ok");
    } else {
        CHECK(both.is_out());  // no process has it open any more
        CHECK(last.answers("read block") == "3");
    }
    CHECK(last.finish() == 0);
}

TEST_CASE(
    "a block stays in its GPU while another process has it open, comes back to be opened, and leaves once closed") {
    Sharing both;
    REQUIRE(both.user.answers("hold 32") == "held");
    REQUIRE(both.is_out());  // a handle alone keeps nothing
    for (int i = 0; i < 2; ++i) {
        REQUIRE(both.opens() == "ok");
        CHECK(both.user.answers("read block") == std::to_string(i + 1));
        REQUIRE(both.maker.answers("hold 32") == "held");
        REQUIRE(both.is_out(64));
        CHECK_THAT(nap_of(both.machine, both.maker)["stays"].get<std::string>(),
                   contains("64 MiB that other processes may use"));
        CHECK(both.user.answers("write block " + std::to_string(i + 2)) == "ok");
        CHECK(within(30s, [&] { return both.machine.held(both.user.pid()) == kContext; }));  // it naps too
        CHECK_THAT(nap_of(both.machine, both.user)["stays"].get<std::string>(), contains("shares GPU memory"));
        CHECK(both.user.answers("check") == "right");
        CHECK(within(10s, [&] { return held_by_books(both.machine, both.user) == (kContext + 32) * kMiB; }));
        CHECK(both.user.answers("close block") == "ok");
        CHECK(both.maker.answers("read block") == std::to_string(i + 2));
        CHECK(both.maker.answers("check") == "right");
        REQUIRE(both.is_out());
    }
}

TEST_CASE("a handle that is opened twice gives one address, which stays until the last close") {
    Sharing both;
    REQUIRE(both.opens() == "ok");
    REQUIRE(both.opens() == "ok");
    CHECK(both.user.answers("compare addresses") == "same");
    CHECK(both.user.answers("ask about block") == "as of its own");
    CHECK(both.user.answers("close block") == "ok");
    CHECK(both.user.answers("write block 5") == "ok");
    CHECK(both.maker.answers("read block") == "5");
    CHECK(both.user.answers("close block") == "ok");
    REQUIRE(both.opens() == "ok");
    CHECK(both.user.answers("read block") == "5");
}

TEST_CASE("a block that was open in a context is closed when that ends, in the process that made it too") {
    Sharing both;
    REQUIRE(both.maker.answers("hold 32") == "held");
    REQUIRE(both.opens() == "ok");
    REQUIRE(both.is_out(64));
    REQUIRE(both.user.answers("reset context") == "ok");
    CHECK(both.is_out(64));  // until the next nap
    CHECK(both.maker.answers("read block") == "1");
    CHECK(both.is_out());
}

TEST_CASE("memory that its maker frees while another process has it open stays there") {
    Sharing both;
    REQUIRE(both.opens() == "ok");
    CHECK(both.maker.answers("drop") == "ok");
    CHECK(both.maker.answers("take 64") == "ok");
    CHECK(both.maker.answers("write block 7") == "ok");
    CHECK(both.user.answers("read block") == "1");
    CHECK(both.user.answers("close block") == "ok");
    CHECK(both.is_out());
    CHECK(both.opens() == "error");  // the new block may be at the same address
    CHECK_THAT(log_of(both.machine),
               contains("cuIpcOpenMemHandle is refused: the memory that the handle names has been freed"));
}

TEST_CASE("a handle of a process that has ended, of the process itself or with another secret opens nothing") {
    Sharing both;
    both.maker.tell("open block");
    CHECK(both.maker.answers(both.handle) == "error");
    std::string other = both.handle;
    other.replace(other.rfind(' ', other.size() - 2), std::string::npos, other.ends_with(" 0 ") ? " 1 " : " 0 ");
    CHECK(both.opens(other) == "error");
    CHECK(both.opens() == "ok");
    Program bare(both.machine, {});
    bare.tell("open block");
    CHECK(bare.answers(both.handle) == "error");
    CHECK(both.maker.finish() == 0);
    CHECK(both.user.answers("close block") == "ok");
    CHECK(both.opens() == "error");
    CHECK_THAT(log_of(both.machine),
               contains("has ended, or has no control socket in the runtime directory of this process"));
}

TEST_CASE("an open during which a call of the driver fails keeps nothing, and the next one succeeds") {
    const std::string call =
        GENERATE("cuMemAddressReserve", "cuMemImportFromShareableHandle", "cuMemMap", "cuMemSetAccess");
    CAPTURE(call);
    Sharing both;
    Program other(both.machine, with(both.naps, {{"CURB_SIM_FAULT", call + ":1:999"}}));
    other.tell("open block");
    CHECK(other.answers(both.handle) == "error");
    CHECK(both.is_out());
    other.tell("open block");
    CHECK(other.answers(both.handle) == "ok");
    CHECK(other.answers("read block") == "1");
}

TEST_CASE("another user cannot open a block, and the log says who can") {
    if (!can_become_another()) return;
    constexpr uid_t kOther = 12345;
    Sharing both;
    const auto log = (both.machine.folder() / "other.log").string();
    open_to_all(both.machine);
    const std::string policy =
        both.machine.write("other.json", R"({ "version": 1, "log": { "level": "info", "file": ")" + log + "\" } }");
    Program other(both.machine, under_policy(policy), becoming(kOther));
    other.tell("open block");
    CHECK(other.answers(both.handle) == "error");
    CHECK_THAT(contents(log),
               contains("belongs to user 0: only that user's processes, and root's, can open its memory"));
}

TEST_CASE("a thousand blocks are opened at once, and all leave when they are closed") {
    constexpr int kCount = 1000;
    Sharing both;
    std::vector<std::string> handles{both.handle};
    while (handles.size() < kCount) {
        REQUIRE(both.maker.answers("take 2") == "ok");
        handles.push_back(both.maker.answers("export block"));
    }
    for (const std::string &handle : handles) REQUIRE(both.opens(handle) == "ok");
    CHECK(both.user.answers("write block 9") == "ok");
    CHECK(both.maker.answers("read block") == "9");
    for (int i = 0; i < kCount; ++i) REQUIRE(both.user.answers("close block") == "ok");
    CHECK(both.maker.answers("read block") == "9");  // ends a nap that has begun meanwhile
    CHECK(both.is_out());
    CHECK(both.maker.answers("read block") == "9");
}

TEST_CASE("children of processes that share a block keep nothing of it", "[fork-child]") {
    Sharing both;
    CHECK(both.maker.answers("fork and export") == "ok");
    REQUIRE(both.opens() == "ok");
    const pid_t child = std::stoi(both.user.answers("fork and stay"));
    CHECK(both.user.answers("close block") == "ok");
    CHECK(both.is_out());
    ::kill(child, SIGKILL);
}

TEST_CASE("a block of a suspended process is opened once it is resumed") {
    Sharing both;
    both.machine.succeeds({"suspend", "--timeout", "1m", both.maker.id()});
    both.user.tell("open block");
    both.user.tell(both.handle);
    CHECK(both.user.says(500ms).empty());
    both.machine.succeeds({"resume", both.maker.id()});
    CHECK(both.user.says() == "ok");
    CHECK(both.user.answers("read block") == "1");
}

TEST_CASE("an open by a program that has no descriptor left when the answer comes keeps nothing") {
    Sharing both;
    Program user(both.machine, under_curb());  // without naps: the simulated driver needs descriptors for them
    both.machine.succeeds({"suspend", "--timeout", "1m", both.maker.id()});
    user.tell("open block");
    user.tell(both.handle);
    CHECK(user.says(500ms).empty());  // it waits for the answer
    rlimit before{};
    REQUIRE(prlimit(user.pid(), RLIMIT_NOFILE, nullptr, &before) == 0);
    const rlimit none{3, before.rlim_max};
    REQUIRE(prlimit(user.pid(), RLIMIT_NOFILE, &none, nullptr) == 0);
    both.machine.succeeds({"resume", both.maker.id()});
    CHECK(user.says() == "error");
    REQUIRE(prlimit(user.pid(), RLIMIT_NOFILE, &before, nullptr) == 0);
    CHECK(both.is_out());
    user.tell("open block");
    CHECK(user.answers(both.handle) == "ok");
    CHECK(user.answers("read block") == "1");
}

TEST_CASE("a process that takes turns posts the bytes that would leave, each of them once") {
    const Machine machine(Environment{{"CURB_SIM_GPUS", "2"}});
    const Environment turns = napping(machine, R"("turn": "1h", "deep": "never")");
    Program maker(machine, turns), user(machine, turns);
    const auto posts = [](const Program &program, const std::vector<std::int64_t> &mib) {
        std::vector<std::int64_t> found;
        const bool is_posted = within(10s, [&] {
            found.clear();
            for (const auto &posted : curb::control::board::read_all(curb::control::places()))
                if (posted.entry.process.pid == program.pid())
                    for (const auto &gpu : posted.entry.gpus)
                        found.push_back(gpu.turn ? static_cast<std::int64_t>(gpu.turn->leaves) / kMiB : -1);
            return found == mib;
        });
        CAPTURE(found);
        CHECK(is_posted);
    };
    REQUIRE(maker.answers("take 64") == "ok");
    const std::string handle = maker.answers("export block");
    REQUIRE(maker.answers("map 96") == "mapped");  // the half of it at two places
    REQUIRE(maker.answers("hold 32 1") == "held");
    posts(maker, {160, 32});
    user.tell("open block");
    REQUIRE(user.answers(handle) == "ok");
    posts(maker, {96, 32});
    posts(user, {0});
    REQUIRE(user.answers("close block") == "ok");
    posts(maker, {160, 32});
}
