// The helper of a nap: the program never sees it, no other user can have put it there, and its failure never counts as
// success.
#include "capped.hpp"
#include "ceiling.hpp"
#include "naps.hpp"

namespace {

constexpr uid_t kNobody = 65'534;

pid_t parent_of(pid_t pid) {
    const std::string stat = contents(fs::path("/proc") / std::to_string(pid) / "stat");
    std::istringstream fields(stat.substr(stat.rfind(')') + 1));
    char state = 0;
    pid_t parent = 0;
    fields >> state >> parent;
    return parent;
}
// True if the process has ended, whether or not somebody has waited for it.
bool has_gone(pid_t pid) { return contents(fs::path("/proc") / std::to_string(pid) / "cmdline").empty(); }
// Has the next call of this name fail, in the helper.
void fail_next(const Machine &machine, const std::string &call) { machine.write("fault", call + ":1:999"); }
Environment with_faults(const Machine &machine) {
    return with(napping(machine), {{"CURB_SIM_FAULT_FILE", (machine.folder() / "fault").string()}});
}

// An installation of its own: a prefix with libcurb.so and the command.
class Installation {
  public:
    explicit Installation(const Machine &machine, const std::string &folder = "lib/curb")
        : prefix_(machine.folder() / "prefix"), library_(prefix_ / folder / "libcurb.so") {
        fs::create_directories(library_.parent_path());
        fs::create_directories(prefix_ / "bin");
        fs::copy_file(tested::kLibrary, library_);
        fs::copy_file(tested::kCurb, command());
    }
    [[nodiscard]] fs::path prefix() const { return prefix_; }
    [[nodiscard]] fs::path library() const { return library_; }
    [[nodiscard]] fs::path command() const { return prefix_ / "bin/curb"; }

  private:
    fs::path prefix_, library_;
};

// Returns why a program with this library did not nap.
std::string refusal_of(const Machine &machine, const Environment &environment) {
    Program program(machine, environment);
    REQUIRE(program.answers("hold 64") == "held");
    std::string why;
    CHECK(within(20s, [&] {
        const Json nap = nap_of(machine, program);
        if (nap.is_object() && nap["refused"].is_string()) why = nap["refused"];
        return !why.empty();
    }));
    CHECK(machine.state(program.pid()) == "running");
    CHECK(program.answers("check") == "right");
    return why;
}

}  // namespace

TEST_CASE("a program never sees its helper as a child, nor its end as a signal") {
    const std::string as = GENERATE("watch children", "subreaper");
    CAPTURE(as);
    const Machine machine;
    Holding program(machine, 64, napping(machine));
    REQUIRE(program.answers("watch children") == "ok");
    REQUIRE(program.answers(as) == "ok");
    const pid_t helper = helper_of_napping(machine, program);
    CHECK(program.answers("children") == "no child, 0 signals");
    CHECK(program.answers("check") == "right");
    CHECK(within(10s, [&] { return has_gone(helper); }));
    CHECK(program.answers("children") == "no child, 0 signals");
    CHECK(program.finish() == 0);
}

TEST_CASE("a helper is in a session of its own, and a signal to the program's group does not reach it") {
    const Machine machine;
    Holding program(machine, 64, napping(machine), [] {
        ::setpgid(0, 0);
        ::signal(SIGINT, SIG_IGN);  // the program ignores it; its helper would not
    });
    const pid_t helper = helper_of_napping(machine, program);
    CHECK(::getsid(helper) != ::getsid(program.pid()));
    CHECK(fs::read_symlink(fs::path("/proc") / std::to_string(helper) / "cwd") == "/");
    REQUIRE(::kill(-program.pid(), SIGINT) == 0);
    CHECK_FALSE(within(300ms, [&] { return has_gone(helper); }));
    CHECK(program.answers("check") == "right");
}

TEST_CASE("a helper that fails does not count as one that succeeded, whatever the program does with its children") {
    const std::string what = GENERATE("ignore children", "reap all children", "watch children");
    const std::string call = GENERATE("cuCheckpointProcessRestore", "cuCheckpointProcessUnlock");
    CAPTURE(what, call);
    const Machine machine;
    Holding program(machine, 64, with_faults(machine));
    REQUIRE(program.answers(what) == "ok");
    for (int i = 0; i < 2; ++i) {
        REQUIRE(is_out(machine, program));
        fail_next(machine, call);
        CHECK(program.answers("synchronize") == "ok");  // the driver ends a program that does so outside of its GPUs
        CHECK(program.answers("check") == "right");
    }
    CHECK(program.finish() == 0);
}

TEST_CASE("a program comes back if its helper is killed, the helper's parent, or both") {
    const auto [kills_helper, kills_parent] = GENERATE(table<bool, bool>({{true, false}, {false, true}, {true, true}}));
    CAPTURE(kills_helper, kills_parent);
    const Machine machine;
    Holding program(machine, 64, napping(machine));
    const pid_t helper = helper_of_napping(machine, program), parent = parent_of(helper);
    REQUIRE(parent != program.pid());
    REQUIRE(parent_of(parent) == program.pid());
    if (kills_parent) REQUIRE(::kill(parent, SIGKILL) == 0);
    if (kills_helper) REQUIRE(::kill(helper, SIGKILL) == 0);
    CHECK(program.answers("synchronize") == "ok");
    CHECK(program.answers("check") == "right");
    REQUIRE(is_out(machine, program));
    CHECK(program.answers("check") == "right");
}

TEST_CASE("a program that is killed in a nap leaves neither its helper, nor the helper's parent, nor a record") {
    const Machine machine;
    Holding program(machine, 64, napping(machine));
    const pid_t helper = helper_of_napping(machine, program), parent = parent_of(helper);
    program.killed();
    CHECK(within(10s, [&] { return has_gone(helper) && has_gone(parent); }));
    CHECK(within(10s, [&] { return machine.records(program.pid()).empty(); }));
}

TEST_CASE("a program comes back after its first thread has left in a nap", "[own-runtime]") {
    const Machine machine;
    Holding program(machine, 64, napping(machine));
    REQUIRE(is_out(machine, program));
    REQUIRE(program.answers("leave main") == "ready");
    CHECK(program.answers("synchronize") == "ok");
    CHECK(program.answers("check") == "right");
}

TEST_CASE("a program comes back after it has forbidden itself to send in a nap") {
    const Machine machine;
    Holding program(machine, 64, napping(machine));
    REQUIRE(is_out(machine, program));
    REQUIRE(within(10s, [&] { return log_of(machine).find("a nap begins") != std::string::npos; }));
    REQUIRE(program.answers("forbid sending") == "ok");
    CHECK(program.answers("synchronize") == "ok");
    CHECK(program.answers("check") == "right");
    CHECK(program.finish() == 0);
}

TEST_CASE("a program that writes over its variables naps with those that it was started with", "[own-variables]") {
    const Machine machine;
    Holding program(machine, 64, napping(machine));
    REQUIRE(program.answers("title") == "ok");
    REQUIRE(is_out(machine, program));
    CHECK(program.answers("check") == "right");
}

TEST_CASE("a program naps by the command of its own installation, wherever it goes after its start") {
    const std::string folder = GENERATE("lib/curb", "lib");
    const Machine machine;
    const Installation installed(machine, folder);
    const fs::path elsewhere = machine.folder() / "elsewhere";
    fs::create_directories(elsewhere / "bin");
    const fs::path trap =
        machine.write("elsewhere/bin/curb", "#!/bin/sh\ntouch " + machine.folder().string() + "/sprung");
    fs::permissions(trap, fs::perms::owner_all);
    Holding program(machine, 64, with(napping(machine), {{"LD_PRELOAD", preloaded(folder + "/libcurb.so")}}),
                    [&] { REQUIRE(::chdir(installed.prefix().c_str()) == 0); });
    program.tell("enter");
    REQUIRE(program.answers(elsewhere.string()) == "ok");
    REQUIRE(is_out(machine, program));
    CHECK(program.answers("check") == "right");
    CHECK_FALSE(fs::exists(machine.folder() / "sprung"));
}

TEST_CASE("curb starts no helper that another user could have put there") {
    struct Case {
        const char *what, *why;
        void (*change)(const Installation &);
        const char *folder = "lib/curb";
    };
    const auto give_to_nobody = [](const fs::path &path) { REQUIRE(::lchown(path.c_str(), kNobody, kNobody) == 0); };
    static const auto give = give_to_nobody;
    const auto one = GENERATE(
        Case{"its file is another user's", "bin/curb belongs to user 65534",
             [](const Installation &at) { give(at.command()); }},
        Case{"its folder is another user's", "bin belongs to user 65534",
             [](const Installation &at) { give(at.prefix() / "bin"); }},
        Case{"a folder above is another user's", "prefix belongs to user 65534",
             [](const Installation &at) { give(at.prefix()); }},
        Case{"others may write the file", "can be written by others",
             [](const Installation &at) { fs::permissions(at.command(), fs::perms(0757)); }},
        Case{"others may write the folder", "can be written by others",
             [](const Installation &at) { fs::permissions(at.prefix() / "bin", fs::perms(0757)); }},
        Case{"it is a link", "is a symbolic link",
             [](const Installation &at) {
                 fs::rename(at.command(), at.prefix() / "curb");
                 fs::create_symlink(at.prefix() / "curb", at.command());
             }},
        Case{"it is missing", "is not beside libcurb.so", [](const Installation &at) { fs::remove(at.command()); }},
        Case{"the library is in no folder of an installation", "is not beside libcurb.so", [](const Installation &) {},
             "lib/python/curb"});
    CAPTURE(one.what);
    if (::geteuid() != 0 && std::string(one.why).find("belongs to") != std::string::npos)
        return skip("only root can give files away");
    const Machine machine;
    const Installation installed(machine, one.folder);
    one.change(installed);
    CHECK_THAT(refusal_of(machine, with(napping(machine), {{"LD_PRELOAD", preloaded(installed.library().string())}})),
               contains(one.why));
}

TEST_CASE("a helper loads no library from a folder that others may write") {
    const Machine machine;
    const fs::path open = machine.folder() / "open";
    fs::create_directory(open);
    fs::permissions(open, fs::perms::all);
    for (const char *library : {"libcuda.so.1", "libnvidia-ml.so.1"})
        fs::copy_file(fs::path(tested::kSim) / library, open / library);
    Holding program(machine, 64, with(napping(machine), {{"LD_LIBRARY_PATH", open.string() + ":" + tested::kSim}}));
    const pid_t helper = helper_of_napping(machine, program);
    const std::string maps = contents(fs::path("/proc") / std::to_string(helper) / "maps");
    CHECK_THAT(maps, contains(tested::kSim + "/libcuda.so") && !contains(open.string()));
    CHECK(program.answers("check") == "right");
}

TEST_CASE("curb starts no helper in a program that is set-user-ID", "[bare]") {
    if (!can_become_another()) return;
    const Machine machine;
    open_to_all(machine);
    const fs::path program = machine.folder() / "scenarios";
    fs::copy_file(tested::kScenarios, program);
    REQUIRE(::chown(program.c_str(), kNobody, kNobody) == 0);
    REQUIRE(::chmod(program.c_str(), 04755) == 0);
    const Ceiling ceiling(R"({ "version": 1, "suspend": { "idle": "100ms", "light": false } })");
    if (!can_mount()) return;
    fs::permissions(ceiling.etc(), fs::perms(0755));
    std::ofstream(ceiling.etc() / "ld.so.preload") << tested::kLibrary << "\n";
    Running running({program, "runs_commands"}, machine.environment(), ceiling.prepare());
    if (running.says(5s) != "ready")
        return skip("the loader does not find the simulated driver for set-user-ID programs");
    REQUIRE(running.answers("hold 64") == "held");
    CHECK(within(20s, [&] {
        return machine.curb({"ps", running.id()}).out.find("curb starts no helper in a") != std::string::npos;
    }));
    CHECK(machine.state(running.pid()) == "running");
}

TEST_CASE("a process that holds no memory of a GPU has nothing to move, and naps soon after it has some") {
    const Machine machine;
    Running program({tested::kScenarios, "runs_commands_later"},
                    with(machine.environment(), napping(machine, R"("idle": "100ms")")));
    REQUIRE(program.says() == "imports");
    std::this_thread::sleep_for(4s);
    CHECK_THAT(log_of(machine), !contains("no nap now"));
    fails(machine.curb({"suspend", "--until-used", program.id()}), contains("it holds no memory of a GPU"));
    REQUIRE(program.answers("go on") == "ready");
    CHECK(within(20s, [&] { return machine.state(program.pid()) == "checkpointed"; }));
    CHECK(program.answers("check") == "right");
}

TEST_CASE("a process that could not nap tries again soon after it has used the GPU") {
    const Machine machine;
    Program program(machine, napping(machine, R"("idle": "100ms")"));
    REQUIRE(program.answers("export pool") == "ok");
    std::this_thread::sleep_for(7s);  // the next attempt is more than 6 s off
    CHECK_THAT(log_of(machine), contains("no nap now: it shares GPU memory"));
    REQUIRE(program.answers("destroy pool") == "ok");
    CHECK(within(4s, [&] { return machine.state(program.pid()) == "checkpointed"; }));
    CHECK(program.answers("check") == "right");
}

TEST_CASE("a helper whose process ends right after the move ends too") {
    const Machine machine;
    Holding program(machine, 64);
    // It writes its first line to a full pipe, so it waits there until the test reads.
    const auto with_full_output = [] {
        ::fcntl(1, F_SETFL, O_NONBLOCK);
        while (::write(1, "x", 1) == 1) {
        }
        ::fcntl(1, F_SETFL, 0);
    };
    Running helper({tested::kCurb, "suspend", "--nap", program.id()}, machine.environment(), with_full_output);
    REQUIRE(is_out(machine, program));
    program.killed();
    CHECK_THAT(helper.says(), contains("xout "));
    CHECK(within(10s, [&] { return helper.has_ended(); }));
}

TEST_CASE("a process is not shown as suspended while it leaves for a nap") {
    const Machine machine(Environment{{"CURB_SIM_LATENCY", "h100"}});
    Holding program(machine, 6144, napping(machine, R"("idle": "500ms")"));
    REQUIRE(within(
        20s, [&] { return machine.state(program.pid()) == "locked" && !machine.records(program.pid()).empty(); }));
    std::string shown = machine.curb({"ps", program.id()}).out;
    for (const std::string &line : lines(machine.curb({"ps"}).out))  // root sees other tests' processes too
        if (line.find(program.id()) != std::string::npos) shown += line;
    CHECK(machine.state(program.pid()) == "locked");
    CHECK_THAT(shown, !contains("curb resume") && !contains("in host memory"));
    REQUIRE(is_out(machine, program));
    CHECK(program.answers("check") == "right");
}
