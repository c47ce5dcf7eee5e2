// `curb release` and the requests behind it: one process, a shell, all processes of a user, processes that do not
// answer.

#include <fcntl.h>
#include <sys/resource.h>

#include <deque>
#include <memory>

#include "control/runtime_dir.hpp"
#include "long_maps.hpp"
#include "stand_in.hpp"
#include "steered.hpp"
#include "terminal.hpp"

using namespace steered;
using control::kForEver;
using control::ReleaseReport;
using policy::Step;

namespace {

ReleaseReport released(const control::Reply &reply) { return said<ReleaseReport>(reply); }

// Answers status requests as a capped process does, and all others with `line`; does not answer if `line` is empty.
stand_in::StandIn::What answers_with(const std::string &line) {
    return [line](int listening) {
        for (;;) {
            const int client = stand_in::client_of(listening);
            std::string request;
            for (char byte = 0; ::recv(client, &byte, 1, 0) > 0 && byte != '\n';) request += byte;
            const bool is_status = request.find("\"status\"") != std::string::npos;
            stand_in::say(client, is_status ? stand_in::status_line() : line);
        }
    };
}
const std::string kReleased = control::text(control::Reply(ReleaseReport{})) + "\n";

// Gives the runtime directory to another user.
void give(const stand_in::Runtime &runtime, uid_t user) {
    for (const fs::path &folder : {runtime.path(), runtime.folder()}) REQUIRE(::chown(folder.c_str(), user, user) == 0);
}

}  // namespace

TEST_CASE("a release takes the requested steps, until enough is back") {
    Capped process;
    CHECK(process("pool") == "ok");
    const auto other = released(ask(process.pid(), policy::ReleaseRequest{{}, {{Step::frameworks}}}, kForEver));
    CHECK(other.steps.size() == 1);
    CHECK(process("held") != std::to_string(kContext));
    const auto little = released(ask(process.pid(), policy::ReleaseRequest{MiB, {}}, kForEver));
    CHECK(little.steps.back().step == Step::pools);  // the next one was not needed
}

TEST_CASE("curb release prints what each step gave back") {
    Capped process;
    CHECK(process("pool") == "ok");
    const Outcome outcome = process.curb({"release", process.id()});
    CHECK(outcome.status == 0);
    CHECK(outcome.err.empty());
    const Words out = lines(outcome.out);
    REQUIRE(out.size() == 1 + policy::kSteps);
    CHECK_THAT(out[0], contains("process " + process.id() + ": released 256 MiB in "));
    const auto line = [&](Step step) { return out[1 + static_cast<std::size_t>(step)]; };
    CHECK_THAT(line(Step::cache), contains("cache") && contains("0 B") && contains("nothing cached"));
    CHECK_THAT(line(Step::pools), contains("pools") && contains("256 MiB") && contains(" ms"));
    CHECK_THAT(line(Step::frameworks), contains("frameworks") && contains("0 B") && contains("no Python"));
    CHECK_THAT(line(Step::pressure), contains("pressure") && contains("0 B") && contains("no caller known to answer"));
}

TEST_CASE("curb release --all asks every process of the user") {
    // Not as root, who would ask the processes of every user on this machine.
    constexpr uid_t kNobodyElse = 54'321;
    if (!can_become_another()) return;
    const TempDir runtime;
    REQUIRE(::chown(runtime.path().c_str(), kNobodyElse, kNobodyElse) == 0);
    const auto become = becoming(kNobodyElse);
    const auto all = [&](Words more) {
        more.insert(more.begin(), {tested::kCurb, "release", "--all"});
        return start({more, {{"XDG_RUNTIME_DIR", runtime.path().string()}}, {}, {}, become});
    };
    CHECK_THAT(all({}).out, contains("no process to ask: none of this user has used CUDA under curb"));
    CHECK(all({"--json"}).out == "[]\n");

    const Capped::How how{.prepare = become};
    Capped first(runtime.path(), how), second(runtime.path(), how), third(runtime.path(), how);
    for (Capped *process : {&first, &second, &third}) CHECK((*process)("pool") == "ok");
    const Outcome outcome = all({});
    CHECK(outcome.status == 0);
    for (Capped *process : {&first, &second, &third}) {
        CHECK_THAT(outcome.out, contains(process->id() + "     256 MiB"));
        CHECK((*process)("held") == std::to_string(kContext));
    }
    CHECK(last_line(outcome.out) == "768 MiB in all, of 3 processes");
}

TEST_CASE("root's curb release reaches processes of several users at once") {
    if (!can_become_another()) return;
    constexpr uid_t kFirst = 54'351;
    std::vector<std::unique_ptr<TempDir>> runtimes;
    std::vector<std::unique_ptr<Capped>> processes;
    Words words{tested::kCurb, "release"};
    for (uid_t user = kFirst; user < kFirst + 4; ++user) {
        const fs::path &runtime = runtimes.emplace_back(std::make_unique<TempDir>())->path();
        REQUIRE(::chown(runtime.c_str(), user, user) == 0);
        for (int i = 0; i < 2; ++i) {
            const Capped::How how{.environment = {}, .prepare = becoming(user)};
            words.push_back(processes.emplace_back(std::make_unique<Capped>(runtime, how))->id());
        }
    }
    for (int i = 0; i < 5; ++i) {
        const Outcome outcome = start({words, {}});
        CHECK(outcome.err.empty());
        REQUIRE(outcome.status == 0);
        CHECK(last_line(outcome.out) == "0 B in all, of 8 processes");
    }
}

TEST_CASE("curb release --all ends although a process never answers, and prints the other answers first") {
    constexpr uid_t kUser = 54'361;
    if (!can_become_another()) return;
    const stand_in::Runtime runtime;
    give(runtime, kUser);
    const stand_in::StandIn silent(runtime, answers_with(""), becoming(kUser)),
        good(runtime, answers_with(kReleased), becoming(kUser));
    // The command's time limit of 30 s passes in 3 s.
    Running all({tested::kCurb, "release", "--all"},
                {{"XDG_RUNTIME_DIR", runtime.path().string()},
                 {"LD_PRELOAD", preloaded(tested::kPacedClock)},
                 {"CLOCK_SPEED", "10"}},
                becoming(kUser));
    CHECK_THAT(all.says(20s), contains("RELEASED"));
    CHECK_THAT(all.says(20s), contains(std::to_string(good.pid()) + "         0 B"));
    CHECK(all.end() == 1);
}

TEST_CASE("curb release --all asks many processes in little memory, however much they have mapped") {
    if (tested::has_sanitizer()) return skip("a sanitizer's runtime takes terabytes of addresses");
    constexpr uid_t kUser = 54'362;
    if (!can_become_another()) return;
    const stand_in::Runtime runtime;
    give(runtime, kUser);
    const LongMaps maps;
    std::deque<stand_in::StandIn> processes;
    const auto with_maps = [] {
        becoming(kUser)();
        ::prctl(PR_SET_DUMPABLE, 1);  // as a program that the user has started: its maps can be read
    };
    for (int i = 0; i < 40; ++i) processes.emplace_back(runtime, answers_with(kReleased), with_maps);
    const auto with_little = [] {
        const rlimit little{rlim_t{256} << 20, rlim_t{256} << 20};
        if (::setrlimit(RLIMIT_AS, &little) != 0) ::_exit(97);
        becoming(kUser)();
    };
    const Outcome outcome = start(
        {{tested::kCurb, "release", "--all"}, {{"XDG_RUNTIME_DIR", runtime.path().string()}}, {}, {}, with_little});
    CHECK(outcome.err.empty());
    CHECK(outcome.status == 0);
    CHECK(last_line(outcome.out) == "0 B in all, of 40 processes");
}

TEST_CASE("an answer cannot send control characters to the terminal") {
    const stand_in::Runtime runtime;
    const std::string evil = "\u009B2J\u202E\x1b[31m";
    const bool fails = GENERATE(true, false);
    ReleaseReport report;
    report.trigger = evil;
    report.steps.push_back({Step::pools, 0, 0, evil});
    const std::string line = control::text(fails ? control::Reply(Failure{evil}) : control::Reply(report)) + "\n";
    const stand_in::StandIn process(runtime, answers_with(line), [] { ::prctl(PR_SET_NAME, "\u009B2J"); });
    const std::string pid = std::to_string(process.pid());
    for (const Words &words :
         std::vector<Words>{{"release", pid}, {"cap", pid, "1GiB"}, {"suspend", pid}, {"resume", pid}, {"ps", pid}}) {
        CAPTURE(words);
        const Outcome outcome = start({joined({tested::kCurb}, words), {{"XDG_RUNTIME_DIR", runtime.path().string()}}});
        const std::string shown = outcome.out + outcome.err;
        CAPTURE(shown);
        CHECK(!shown.empty());
        for (const char *acted_on : {"\u009B", "\u202E", "\x1b"}) CHECK(count(shown, acted_on) == 0);
    }
}

TEST_CASE("a process is found although the asking environment names another runtime directory") {
    const TempDir other;
    Capped process;
    CHECK(start({{tested::kCurb, "release", process.id()}, {{"XDG_RUNTIME_DIR", other.path().string()}}}).status == 0);
}

TEST_CASE("while a release waits for Python's lock, status is answered and other releases join it", "[foreign]") {
    Capped process(python());
    CHECK(process("hold") == "holding");
    // The release goes on after its client has disconnected.
    for (int i = 0; i < 10; ++i)
        CHECK_THAT(refusal(ask(process.pid(), policy::ReleaseRequest(), 50ms)), contains("has not answered for 50 ms"));
    control::Reply first, second;
    std::thread one([&] { first = ask(process.pid(), policy::ReleaseRequest(), kForEver); });
    std::thread two([&] { second = ask(process.pid(), policy::ReleaseRequest(), kForEver); });
    CHECK(quickest([&] { status(process); }) < 50ms);
    process.tell("");
    CHECK(process.says() == "free");
    one.join();
    two.join();
    CHECK(!released(first).steps.empty());
    CHECK(!released(second).steps.empty());
}

TEST_CASE("a process that can have no socket directory runs on, and its log says why it has no control socket") {
    if (!can_become_another()) return;
    constexpr uid_t kUser = 54'323;
    std::vector<fs::path> taken{"/tmp/curb-54323"};
    for (int spare = 1; spare <= 9; ++spare) taken.push_back("/tmp/curb-54323." + std::to_string(spare));
    if (fs::exists("/run/curb")) taken.emplace_back("/run/curb/54323");
    for (const fs::path &one : taken) fs::create_directory(one);
    const TempDir runtime;
    fs::permissions(runtime.path(), fs::perms(0755));
    const std::string policy = R"({ "version": 1, "log": { "level": "info" } })";
    Capped process(runtime.path(), {.prepare = becoming(kUser), .socket = false, .policy = policy});
    CHECK(within(10s, [&] { return process.log().find("no control socket") != std::string::npos; }));
    CHECK_THAT(process.log(), contains("/tmp/curb-54323: it belongs to user 0, not to user 54323"));
    CHECK(process("pool") == "ok");
    CHECK(process.finish() == 0);
    for (const fs::path &one : taken) fs::remove(one);
}

TEST_CASE("on a terminal curb release prints what it waits for, and an interrupt does not end the release",
          "[foreign]") {
    Capped process(python());
    CHECK(process("hold") == "holding");
    Terminal terminal;
    const int side = ::open(terminal.name().c_str(), O_RDWR | O_NOCTTY | O_CLOEXEC);
    REQUIRE(side >= 0);
    Running command({tested::kCurb, "release", process.id()}, {{"XDG_RUNTIME_DIR", process.folder().string()}}, {},
                    side);
    terminal.until("waiting for process " + process.id() + ": a release waits for Python's lock");
    command.kill(SIGINT);
    CHECK(command.end() == 128 + SIGINT);
    ::close(side);
    process.tell("");
    CHECK(process.says() == "free");
    CHECK(!released(ask(process.pid(), policy::ReleaseRequest(), kForEver)).steps.empty());
}
