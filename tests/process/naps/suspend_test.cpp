// `curb suspend` and `curb resume`. Each case starts a program that runs the test's commands (command_scenarios.cpp),
// under curb or not, moves it, and reads the simulated driver's own books.
#include <linux/sched.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <deque>

#include "control/runtime_dir.hpp"
#include "simulated.hpp"
#include "terminal.hpp"

namespace {

constexpr uid_t kNobody = 65'534;

Running curb_beside(const Machine &machine, const Words &words, const Environment &more = {}, int err = 2) {
    return Running(joined({tested::kCurb}, words), with(machine.environment(), more), {}, err);
}

// Returns the words that suspend a process without a question to it.
Words forced(const Running &program) { return {"suspend", "--force", program.id()}; }

}  // namespace

TEST_CASE("a suspended process holds next to nothing, and comes back with all that it had") {
    const bool capped = GENERATE(true, false);
    CAPTURE(capped);
    const Machine machine(Environment{{"CURB_SIM_GPUS", "2"}});
    Program program(machine, capped ? under_curb() : Environment{});
    REQUIRE(program.answers("hold 300 1") == "held");
    REQUIRE(program.answers("hold 2048 0") == "held");
    const std::int64_t before = machine.held(program.pid());
    REQUIRE(before >= kContext + 2348);
    const Outcome out = machine.succeeds(forced(program));
    CHECK_THAT(out.out, contains("suspended " + program.id() + " (scenarios): ") && contains("8 MiB left"));
    CHECK(out.err.empty());
    CHECK(machine.held(program.pid()) == 2 * kLeft);
    CHECK(machine.state(program.pid()) == "checkpointed");
    program.tell("check");
    CHECK(program.says(300ms).empty());                               // it waits in its CUDA call
    const Outcome release = machine.curb({"release", program.id()});  // which would wait with it
    CHECK(release.status == 1);
    CHECK_THAT(release.err, contains("is suspended") && contains("curb resume " + program.id()));
    const Outcome back = machine.succeeds({"resume", program.id()});
    CHECK_THAT(back.out, contains("resumed " + program.id() + " (scenarios): "));
    CHECK(program.says() == "right");
    CHECK(machine.held(program.pid()) == before);
    CHECK(machine.records(program.pid()).empty());
    CHECK(program.answers("hold 64") == "held");  // under curb, the cap and the books go on
    CHECK(program.finish() == 0);
}

TEST_CASE("suspend and resume do not depend on the GPUs that the shell sees") {
    const Machine machine;
    Holding program(machine, 64);
    CHECK(machine.curb(forced(program), {{"CUDA_VISIBLE_DEVICES", ""}}).status == 0);
    CHECK(machine.curb({"resume", program.id()}, {{"CUDA_VISIBLE_DEVICES", ""}}).status == 0);
    CHECK(machine.curb(forced(program), under_curb()).status == 0);  // a shell that runs under curb itself
    CHECK(machine.curb({"resume", program.id()}, under_curb()).status == 0);
    CHECK(program.answers("check") == "right");
}

TEST_CASE("suspend refuses a process that the driver cannot move, and it runs on") {
    struct Case {
        const char *why;
        Environment program, curb;
        const char *said;
        bool force = true;
        const char *first = "hold 64";
    };
    const auto one = GENERATE(
        Case{"MIG", {}, {{"CURB_SIM_MIG", "1"}}, "is divided (MIG)"},
        Case{"a part by name", {{"CUDA_VISIBLE_DEVICES", "MIG-317b"}, {"CURB_SIM_MIG", "1"}}, {}, "divided (MIG)"},
        Case{"MPS", {}, {{"CURB_SIM_MPS", "1"}}, "through MPS"},
        Case{"an old driver", {}, older_driver(), "570 or newer"},
        Case{"no NVML", {}, {{"CURB_SIM_NVML", "broken"}}, "nvidia-smi"},
        Case{"not listed", {}, {{"CURB_SIM_NVML", "nopids"}}, "NVML lists no GPU memory of it"},
        Case{"a rank", {{"WORLD_SIZE", "2"}, {"RANK", "0"}}, {}, "WORLD_SIZE=2", false},
        Case{"unknown books", {{"LD_PRELOAD", ""}}, {}, "whether it has managed memory", false},
        Case{"managed memory, in the books", {}, {}, "of managed memory, which", true, "managed 64"},
        Case{"managed memory, found by the driver", {{"LD_PRELOAD", ""}}, {}, "managed memory", true, "managed 64"});
    CAPTURE(one.why);
    const Machine machine;
    Program program(machine, with(under_curb(), one.program));
    REQUIRE_THAT(program.answers(one.first), contains("held") || contains("ok"));
    Words words{"suspend", program.id()};
    if (one.force) words.emplace_back("--force");
    const Outcome outcome = machine.curb(words, one.curb);
    CHECK(outcome.status == 1);
    CHECK(outcome.out.empty());
    CHECK_THAT(outcome.err, contains("cannot suspend " + program.id()) && contains(one.said));
    CHECK(program.answers("check") == "right");
    CHECK(machine.records(program.pid()).empty());
}

TEST_CASE("suspend refuses a process that is not there, does not use CUDA or belongs to another user") {
    const Machine machine;
    CHECK_THAT(machine.curb({"suspend", "--force", "4999999"}).err, contains("there is no such process"));
    const Running sleeper({"/bin/sleep", "60"}, {});
    CHECK_THAT(machine.curb(forced(sleeper)).err, contains("does not know it as a process that uses CUDA"));
    CHECK_THAT(machine.curb({"resume", sleeper.id()}).err, contains("does not know it as a process that uses CUDA"));
    if (!can_become_another()) return;
    fails(start({{tested::kCurb, "suspend", sleeper.id()}, machine.environment(), {}, {}, becoming(kNobody)}),
          contains("it belongs to user 0"));
}

TEST_CASE("resume waits until the device has room for the process") {
    const Machine machine;
    Holding program(machine, 8192);
    const std::int64_t before = machine.held(program.pid());
    REQUIRE(machine.curb(forced(program)).status == 0);
    Holding other(machine, 73000, {});
    fails(machine.curb({"resume", program.id()}), contains("are missing") && contains(other.id() + " (scenarios)"));
    CHECK(machine.state(program.pid()) == "checkpointed");
    CHECK(machine.curb({"resume", "--wait", "300ms", program.id()}).status == 1);
    Running waiting = curb_beside(machine, {"resume", "--wait", "60s", program.id()});
    REQUIRE(other.answers("give") == "given");
    CHECK(waiting.end() == 0);
    CHECK(program.answers("check") == "right");
    CHECK(machine.held(program.pid()) == before);
}

TEST_CASE("without its record a process is resumed only with --bytes") {
    const Machine machine;
    Holding program(machine, 1024, {});  // without curb: its books would have the size
    REQUIRE(machine.curb(forced(program)).status == 0);
    const auto records = machine.records(program.pid());
    REQUIRE(records.size() >= 2);  // in the runtime directory and in those of /tmp
    for (const fs::path &record : records) {
        CHECK((fs::status(record).permissions() & fs::perms::mask) == (fs::perms::owner_read | fs::perms::owner_write));
    }
    SECTION("one of the two is enough, from any shell") {
        fs::remove(records.front());
        CHECK(machine.curb({"resume", program.id()}, {{"XDG_RUNTIME_DIR", "/nonexistent"}}).status == 0);
    }
    SECTION("none") {
        for (const fs::path &record : records) fs::remove(record);
        fails(machine.curb({"resume", program.id()}), contains("no record") && contains("--bytes SIZE"));
        CHECK_THAT(machine.curb({"resume", "--bytes", "200GiB", program.id()}).err, contains("are missing"));
        CHECK_THAT(machine.curb({"resume", "--bytes", "50%", program.id()}).err, contains("8GiB"));
        CHECK(machine.curb({"resume", "--bytes", "2GiB", program.id()}).status == 0);
    }
    CHECK(program.answers("check") == "right");
}

TEST_CASE("suspend and resume report that the driver has given a process up") {
    const Machine machine;
    Holding program(machine, 8192, {});
    REQUIRE(machine.curb(forced(program)).status == 0);
    for (const fs::path &record : machine.records(program.pid())) fs::remove(record);
    Holding other(machine, 73000, {});
    const Outcome lost = machine.curb({"resume", "--bytes", "1MiB", program.id()});  // too little
    CHECK(lost.status == 2);
    CHECK_THAT(lost.err, contains("has given it up"));
    CHECK_THAT(machine.curb({"resume", program.id()}).err, contains("has given it up"));
    CHECK_THAT(machine.curb(forced(program)).err, contains("has given it up"));
}

// A process on a machine of its own, and a fault of the driver for the curb that moves it.
struct Faulted {
    explicit Faulted(std::string driver_fault) : fault(std::move(driver_fault)) {
        REQUIRE(program.answers("hold 256") == "held");
        before = machine.held(program.pid());
    }

    const std::string fault;
    const Machine machine;
    Program program{machine};
    std::int64_t before = 0;
};

TEST_CASE("whichever driver call fails, the process runs or can be resumed") {
    const std::string what = GENERATE("suspend", "resume");
    CAPTURE(what);
    std::deque<Faulted> all;
    // The k-th call fails; or the move fails and so does the first way back.
    for (int k = 1; k <= 8; ++k) all.emplace_back("*:" + std::to_string(k) + ":999");
    for (const char *fault : {"cuCheckpointProcessCheckpoint:1:999,cuCheckpointProcessUnlock:1:999",
                              "cuCheckpointProcessCheckpoint:1:999,cuCheckpointProcessGetState:2:999",
                              "cuCheckpointProcessLock:1:999,cuCheckpointProcessGetState:2:999",
                              "cuCheckpointProcessRestore:1:999,cuCheckpointProcessGetState:2:999",
                              "cuCheckpointProcessUnlock:1:999,cuCheckpointProcessUnlock:2:999"})
        all.emplace_back(fault);
    // All at once, as each takes a while.
    const auto begin = [&](const Words &words, bool faulted) {
        std::vector<Begun> moves;
        for (const Faulted &one : all)
            moves.push_back(one.machine.begin_curb(joined(words, {one.program.id()}),
                                                   {{"CURB_SIM_FAULT", faulted ? one.fault : ""}}));
        return moves;
    };
    const Words suspend{"suspend", "--force"}, resume{"resume"};
    if (what == "resume")
        for (Begun &move : begin(suspend, false)) REQUIRE(move.end().status == 0);
    std::vector<Begun> moves = begin(what == "resume" ? resume : suspend, true);
    std::size_t number = 0;
    for (Faulted &one : all) {
        const Outcome outcome = moves[number++].end();
        CAPTURE(one.fault, outcome.err);
        CHECK((outcome.status == 0 || (outcome.status == 1 && !outcome.err.empty())));
        const std::string state = one.machine.state(one.program.pid());
        CHECK((state == "running" || state == "checkpointed"));
        if (state == "checkpointed") CHECK(one.machine.curb({"resume", one.program.id()}).status == 0);
        CHECK(one.program.answers("check") == "right");
        CHECK(one.machine.held(one.program.pid()) == one.before);
        CHECK(one.machine.records(one.program.pid()).empty());
    }
}

TEST_CASE("resume unlocks a process that suspend could not unlock") {
    const Machine machine;
    Holding program(machine, 256);
    std::string faults = "cuCheckpointProcessCheckpoint:1:999";
    for (int i = 1; i <= 5; ++i) faults += ",cuCheckpointProcessUnlock:" + std::to_string(i) + ":999";
    fails(machine.curb(forced(program), {{"CURB_SIM_FAULT", faults}}),
          contains("could not be unlocked") && contains("curb resume " + program.id()), 2);
    REQUIRE(machine.state(program.pid()) == "locked");
    CHECK_THAT(machine.curb(forced(program)).err, contains("it is locked") && contains("curb resume"));
    const Outcome freed = machine.curb({"resume", program.id()});
    CHECK(freed.status == 0);
    CHECK_THAT(freed.out, contains("it runs again"));
    CHECK(program.answers("check") == "right");
}

TEST_CASE("a suspend that is killed at the lock leaves a process that resume unlocks") {
    const Machine machine;
    Holding program(machine, 256);
    REQUIRE(program.answers("submit") == "submitting");
    Running curb = curb_beside(machine, {"suspend", "--force", "--timeout", "60s", program.id()});
    REQUIRE(within(20s, [&] { return machine.state(program.pid()) == "locked"; }));
    SECTION("while it works, another curb leaves the process alone") {
        CHECK_THAT(machine.curb({"resume", program.id()}).err, contains("another curb"));
        CHECK_THAT(machine.curb({"suspend", "--force", "--timeout", "200ms", program.id()}).err,
                   contains("another curb"));
        program.tell("go on");
        CHECK(curb.end() == 0);
        CHECK(machine.curb({"resume", program.id()}).status == 0);
        CHECK(program.says() == "ended");
    }
    SECTION("killed") {
        curb.kill(SIGKILL);
        CHECK(curb.end() == 128 + SIGKILL);
        program.tell("go on");
        CHECK_THAT(machine.curb(forced(program)).err, contains("it is locked"));
        CHECK(machine.curb({"resume", program.id()}).status == 0);
        CHECK(program.says() == "ended");
    }
    CHECK(program.answers("check") == "right");
}

TEST_CASE("work that does not end keeps a process from being suspended, and it runs on") {
    const Machine machine;
    Holding program(machine, 256);
    REQUIRE(program.answers("submit") == "submitting");
    SECTION("in the time given") {
        fails(machine.curb({"suspend", "--force", "--timeout", "200ms", program.id()}),
              contains("did not end within 200ms"));
        program.tell("go on");
    }
    SECTION("until Ctrl-C, before and after the lock was got") {
        const bool got = GENERATE(false, true);
        Running curb = curb_beside(machine, {"suspend", "--force", "--timeout", got ? "60s" : "1s", program.id()});
        REQUIRE(within(20s, [&] { return machine.state(program.pid()) == "locked"; }));
        curb.kill(SIGINT);
        if (got) program.tell("go on");
        CHECK(curb.end() == 130);
        if (!got) program.tell("go on");
    }
    CHECK(program.says() == "ended");
    CHECK(machine.state(program.pid()) == "running");
    CHECK(machine.records(program.pid()).empty());
    CHECK(program.answers("check") == "right");
}

TEST_CASE("Ctrl-C does not stop a process half way out") {
    const Machine machine;
    Holding program(machine, 2048);
    const std::int64_t before = machine.held(program.pid());
    Running curb = curb_beside(machine, forced(program), {{"CURB_SIM_LATENCY", "h100"}});
    REQUIRE(within(20s, [&] { return machine.held(program.pid()) < before; }));
    curb.kill(SIGINT);
    curb.kill(SIGTSTP);
    CHECK(curb.end() == 0);
    CHECK(machine.state(program.pid()) == "checkpointed");
    CHECK(machine.held(program.pid()) == kLeft);
    CHECK(machine.curb({"resume", program.id()}).status == 0);
    CHECK(program.answers("check") == "right");
}

TEST_CASE("on a terminal a long move shows how far it has come") {
    const Machine machine;
    Holding program(machine, 6144);
    Terminal terminal;
    const int side = ::open(terminal.name().c_str(), O_RDWR | O_NOCTTY | O_CLOEXEC);
    REQUIRE(side >= 0);
    CHECK(curb_beside(machine, forced(program), {{"CURB_SIM_LATENCY", "h100"}}, side).end() == 0);
    CHECK(curb_beside(machine, {"resume", program.id()}, {{"CURB_SIM_LATENCY", "h100"}}, side).end() == 0);
    ::close(side);
    CHECK_THAT(terminal.all(), contains(" out, 1.") && contains(" back, 1.") && contains(" of 6.5 GiB"));
    CHECK(program.answers("check") == "right");
}

TEST_CASE("curb suspend --until-used refuses a suspended process at once") {
    const Machine machine;
    Holding program(machine, 64);
    machine.succeeds({"suspend", program.id()});
    const auto begun = std::chrono::steady_clock::now();
    fails(machine.curb({"suspend", "--until-used", program.id()}),
          contains("it is suspended already; curb resume " + program.id() + " brings it back"));
    CHECK(std::chrono::steady_clock::now() - begun < 8s);
    machine.succeeds({"resume", program.id()});
    CHECK(program.answers("check") == "right");
    CHECK(machine.state(program.pid()) == "running");  // the refused nap does not come later
}

// A program of another user, whose claim the test can lock as that user.
struct OfNobody {
    explicit OfNobody(const Machine &machine, const std::function<void()> &prepare)
        : program(machine, 256, {}, prepare), claim("/tmp/curb-" + std::to_string(kNobody)) {
        if (fs::create_directory(claim)) {
            REQUIRE(::chown(claim.c_str(), kNobody, kNobody) == 0);
            fs::permissions(claim, fs::perms::owner_all);
        }
        const auto process = curb::control::name_of(program.pid());
        REQUIRE(process);
        claim /= program.id() + "-" + std::to_string(process->start) + ".claim";
    }
    // Returns a descriptor; closing it unlocks the claim.
    [[nodiscard]] int lock() const {
        const int file = ::open(claim.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        REQUIRE(file >= 0);
        REQUIRE(::fchown(file, kNobody, kNobody) == 0);
        REQUIRE(::flock(file, LOCK_EX | LOCK_NB) == 0);
        return file;
    }

    Holding program;
    fs::path claim;
};

TEST_CASE("a user's lock on a claim does not keep root out, but a process that is locked meanwhile stays so") {
    if (!can_become_another()) return;
    const Machine machine;
    open_to_all(machine);
    const OfNobody of(machine, becoming(kNobody));
    const int locked = of.lock();
    Running suspend = curb_beside(machine, forced(of.program));
    CHECK(suspend.end() == 0);
    CHECK(machine.state(of.program.pid()) == "checkpointed");
    std::string faults = "cuCheckpointProcessUnlock:1:999";
    for (int i = 2; i <= 5; ++i) faults += ",cuCheckpointProcessUnlock:" + std::to_string(i) + ":999";
    CHECK(machine.curb({"resume", of.program.id()}, {{"CURB_SIM_FAULT", faults}}).status == 2);
    fails(machine.curb({"resume", of.program.id()}), contains("another curb is suspending or resuming it right now"));
    CHECK(machine.state(of.program.pid()) == "locked");
    ::close(locked);
    machine.succeeds({"resume", of.program.id()});
}

TEST_CASE("a user's lease on a claim does not keep root out") {
    if (!can_become_another()) return;
    const Machine machine;
    open_to_all(machine);
    const OfNobody of(machine, becoming(kNobody));
    const int leased = of.lock();
    REQUIRE(::flock(leased, LOCK_UN) == 0);
    ::signal(SIGIO, SIG_IGN);  // by which the kernel asks for the lease
    REQUIRE(::fcntl(leased, F_SETLEASE, F_WRLCK) == 0);
    Running suspend = curb_beside(machine, forced(of.program));
    CHECK(within(30s, [&] { return machine.state(of.program.pid()) == "checkpointed"; }));  // a lease lasts 45 s
    ::close(leased);
    CHECK(suspend.end() == 0);
    machine.succeeds({"resume", of.program.id()});
}

TEST_CASE("a suspend that may write no file leaves the process running", "[bare]") {
    const Machine machine;
    const Holding program(machine, 64);
    const auto no_files = [] {
        const rlimit none{0, 0};
        ::setrlimit(RLIMIT_FSIZE, &none);
    };
    Running curb(joined({tested::kCurb}, forced(program)), machine.environment(), no_files);
    CHECK(curb.end() == 1);
    CHECK(machine.state(program.pid()) == "running");
}

TEST_CASE("root does not move a process that has got the pid of the one it meant") {
    if (!can_become_another()) return;
    const Machine machine;
    open_to_all(machine);
    std::optional<OfNobody> first(std::in_place, machine, becoming(kNobody));
    const pid_t pid = first->program.pid();
    const int locked = first->lock();  // curb waits for it, after it has read who it is
    Running curb = curb_beside(machine, {"suspend", "--force", "--timeout", "60s", std::to_string(pid)});
    const auto waits_for_claim = [&] {
        std::error_code error;
        if (contents("/proc/" + curb.id() + "/comm") != "curb\n") return false;  // before exec it has the test's files
        for (const auto &file : fs::directory_iterator("/proc/" + curb.id() + "/fd", error))
            if (fs::read_symlink(file.path(), error).extension() == ".claim") return true;
        return false;
    };
    REQUIRE(within(20s, waits_for_claim));
    first->program.killed();
    const auto with_that_pid = [&] {  // a child of the child that Running started takes the pid
        clone_args wanted{};
        wanted.exit_signal = SIGCHLD;
        wanted.set_tid = reinterpret_cast<std::uint64_t>(&pid);
        wanted.set_tid_size = 1;
        ::close(locked);  // the test's own copy keeps the lock
        const long child = ::syscall(SYS_clone3, &wanted, sizeof wanted);
        if (child == 0) {
            ::prctl(PR_SET_PDEATHSIG, SIGKILL);
            return;
        }
        int status = 1 << 8;
        if (child > 0) ::waitpid(static_cast<pid_t>(child), &status, 0);
        ::_exit(exit_status(status));
    };
    Running second({tested::kScenarios, "runs_commands"}, machine.environment(), with_that_pid);
    if (second.says(20s) != "ready") return skip("this machine does not let root choose a pid");
    REQUIRE(second.answers("hold 64") == "held");
    ::close(locked);
    CHECK(curb.end() == 1);
    CHECK(machine.state(pid) == "running");
    CHECK(second.answers("check") == "right");
}

TEST_CASE("a user can resume a process that root has suspended") {
    if (!can_become_another()) return;
    const Machine machine;
    open_to_all(machine);
    Holding program(machine, 256, {}, becoming(kNobody));
    machine.succeeds(forced(program));
    const Outcome back =
        start({{tested::kCurb, "resume", program.id()}, machine.environment(), {}, {}, becoming(kNobody)});
    INFO(back.err);
    CHECK(back.status == 0);
    CHECK(program.answers("check") == "right");
}
