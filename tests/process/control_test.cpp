// What a capped process answers from outside, and curb release with it.

#include <memory>

#include "control/runtime_dir.hpp"
#include "stand_in.hpp"
#include "steered.hpp"
#include "terminal.hpp"

using namespace steered;
using control::kForEver;
using control::ReleaseReport;
using policy::Step;

namespace {

// Under a cap the books count the context too.
Capped::How capped_at_8_gib() { return {.environment = {{"CURB_CAP", "8GiB"}}}; }

ReleaseReport released(const control::Reply &reply) { return said<ReleaseReport>(reply); }
std::int64_t freed_by(const ReleaseReport &report, Step step) {
    for (const auto &one : report.steps)
        if (one.step == step) return one.freed;
    return -1;
}

// Answers status as a capped process does, and everything else by `line`; empty: never.
void answer_to(int client, const std::string &line) {
    std::string request;
    for (char byte = 0; ::recv(client, &byte, 1, 0) > 0 && byte != '\n';) request += byte;
    if (request.find("\"status\"") != std::string::npos)
        stand_in::say(client, stand_in::status_line());
    else
        stand_in::say(client, line);
}

Outcome release(const TempDir &runtime, Words words) {
    words.insert(words.begin(), "release");
    return curb_in(runtime, std::move(words));
}

}  // namespace

TEST_CASE("a process says what it holds, also while it computes") {
    const TempDir runtime;
    Capped process(runtime.path(), capped_at_8_gib());
    const bool computing = GENERATE(false, true);
    if (computing) CHECK(process("work") == "ok");
    const auto took = quickest([&] {
        const Status told = status(process);
        CHECK(told.pid == process.pid());
        CHECK(!told.version.empty());
        REQUIRE(told.gpus.size() == 1);
        CHECK(told.gpus[0].ordinal == 0);
        CHECK_THAT(told.gpus[0].uuid, contains("GPU-"));
        CHECK(told.gpus[0].held >= kContext);
        CHECK(told.gpus[0].contexts == 1);
    });
    CHECK(took < 50ms);
}

TEST_CASE("what it says it holds is what the driver says") {
    const TempDir runtime;
    Capped process(runtime.path(), capped_at_8_gib());
    CHECK(process("pool") == "ok");
    CHECK(std::to_string(status(process).gpus.at(0).held) == process("held"));
}

TEST_CASE("a release gives back what pools keep, and says so step by step") {
    const TempDir runtime;
    Capped process(runtime.path());
    CHECK(process("pool") == "ok");
    const ReleaseReport report = released(ask(process.pid(), policy::ReleaseRequest(), kForEver));
    CHECK(report.trigger == "curb release");
    CHECK(freed_by(report, Step::pools) == static_cast<std::int64_t>(256 * MiB));
    CHECK(freed_by(report, Step::frameworks) == 0);
    CHECK(process("held") == std::to_string(kContext));
}

TEST_CASE("a release takes the steps that are asked for, until enough is back") {
    const TempDir runtime;
    Capped process(runtime.path());
    CHECK(process("pool") == "ok");
    const auto other = released(ask(process.pid(), policy::ReleaseRequest{{}, {{Step::frameworks}}}, kForEver));
    CHECK(other.steps.size() == 1);
    CHECK(process("held") != std::to_string(kContext));
    const auto little = released(ask(process.pid(), policy::ReleaseRequest{MiB, {}}, kForEver));
    CHECK(little.steps.back().step == Step::pools);  // the next one was not needed
    CHECK(freed_by(little, Step::frameworks) == -1);
}

TEST_CASE("curb release prints what each step gave back") {
    const TempDir runtime;
    Capped process(runtime.path());
    CHECK(process("pool") == "ok");
    const Outcome outcome = release(runtime, {process.id()});
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

TEST_CASE("curb release --json has the same in stable keys") {
    const TempDir runtime;
    Capped process(runtime.path());
    CHECK(process("pool") == "ok");
    const std::string pid = process.id();
    const Outcome outcome = release(runtime, {"--step", "pools", pid, "--bytes", "1GiB", "--json"});
    CHECK(outcome.status == 0);
    CHECK_THAT(outcome.out,
               contains(R"([{"pid":)" + pid + R"(,"trigger":"curb release","steps":[{"step":"pools","freed":)" +
                        std::to_string(256 * MiB) + R"(,"milliseconds":)") &&
                   contains(R"(,"reason":null}],"freed":)" + std::to_string(256 * MiB) + R"(,"milliseconds":)"));
    const Outcome dead = release(runtime, {"--json", "2147483647"});
    CHECK(dead.status == 1);
    CHECK(dead.out == "[{\"pid\":2147483647,\"error\":\"there is no process 2147483647\"}]\n");
}

TEST_CASE("curb release of a shell asks the program that it started, through whatever is between them", "[foreign]") {
    const TempDir runtime;
    const std::string inner = "'" CURB_SCENARIOS "' does_what_it_is_told; exit $?";
    Capped shell(runtime.path(),
                 {.command = {"sh", "-c", "sh -c \"" + inner + "\"; exit $?"}, .environment = {}, .socket = false});
    CHECK(shell("pool") == "ok");
    std::string program;
    const auto has_socket = [&] {
        if (!fs::exists(runtime / "curb")) return false;  // the program makes it with its socket
        for (const auto &entry : fs::directory_iterator(runtime / "curb"))
            if (entry.path().extension() == ".sock") program = entry.path().stem();
        program = program.substr(0, program.find('-'));
        return !program.empty();
    };
    REQUIRE(within(20s, has_socket));
    const Outcome outcome = release(runtime, {shell.id(), program});
    CHECK(outcome.status == 0);
    CHECK_THAT(outcome.out, contains("process " + program + ": released 256 MiB") && !contains("in all"));
    CHECK(outcome.err == "curb: process " + shell.id() +
                             " (sh) is not under curb, or has not used CUDA; asking what it started: " + program +
                             "\n");
    CHECK(shell("held") == std::to_string(kContext));
}

TEST_CASE("curb release --all asks all processes of the user") {
    // Not as root, who would ask everybody's on this machine.
    constexpr uid_t kNobodyElse = 54'321;
    if (const std::string why = no_other_user(CURB_BINARY); !why.empty()) return skip(why);
    const TempDir runtime;
    REQUIRE(::chown(runtime.path().c_str(), kNobodyElse, kNobodyElse) == 0);
    const auto become = becoming(kNobodyElse);
    const auto all = [&](Words more) {
        more.insert(more.begin(), {CURB_BINARY, "release", "--all"});
        return start({more, {{"XDG_RUNTIME_DIR", runtime.path().string()}}, {}, {}, become});
    };
    const Outcome none = all({});
    CHECK(none.status == 0);
    CHECK_THAT(none.out, contains("no process to ask: none of this user has used CUDA under curb"));
    CHECK(all({"--json"}).out == "[]\n");

    Capped first(runtime.path(), {.environment = {}, .prepare = become});
    Capped second(runtime.path(), {.environment = {}, .prepare = become});
    Capped third(runtime.path(), {.environment = {}, .prepare = become});
    for (Capped *process : {&first, &second, &third}) CHECK((*process)("pool") == "ok");
    const Outcome outcome = all({});
    CHECK(outcome.status == 0);
    for (Capped *process : {&first, &second, &third}) {
        CHECK_THAT(outcome.out, contains("process " + process->id() + ": released 256 MiB"));
        CHECK((*process)("held") == std::to_string(kContext));
    }
    CHECK(last_line(outcome.out) == "768 MiB in all, of 3 processes");

    const Outcome roots = start({{CURB_BINARY, "release", first.id()},
                                 {{"XDG_RUNTIME_DIR", "/nonexistent"}},
                                 {},
                                 {},
                                 {}});  // by the process's own environment
    CHECK(roots.status == 0);
    const Outcome others = start({{CURB_BINARY, "release", first.id()}, {}, {}, {}, [] {
                                      if (::setuid(kNobodyElse + 1) != 0) ::_exit(97);
                                  }});
    CHECK(others.status == 1);
    CHECK_THAT(others.err, contains("belongs to user 54321: ask as that user, or as root"));
}

TEST_CASE("root's curb release reaches processes of several users at once, every time") {
    if (const std::string why = no_other_user(CURB_BINARY); !why.empty()) return skip(why);
    constexpr uid_t kFirst = 54'351;
    std::vector<std::unique_ptr<TempDir>> runtimes;
    std::vector<std::unique_ptr<Capped>> processes;
    Words words{CURB_BINARY, "release"};
    for (uid_t user = kFirst; user < kFirst + 4; ++user) {
        const fs::path &runtime = runtimes.emplace_back(std::make_unique<TempDir>())->path();
        REQUIRE(::chown(runtime.c_str(), user, user) == 0);
        for (int i = 0; i < 2; ++i) {
            const Capped::How how{.environment = {}, .prepare = becoming(user)};
            words.push_back(processes.emplace_back(std::make_unique<Capped>(runtime, how))->id());
        }
    }
    for (int i = 0; i < 5; ++i) {
        const Outcome outcome = start({words, {}, {}, {}, {}});
        CHECK(outcome.err.empty());
        REQUIRE(outcome.status == 0);
        CHECK(last_line(outcome.out) == "0 B in all, of 8 processes");
    }
}

TEST_CASE("curb release --all comes to an end though a process never answers, and prints the others' answers before") {
    constexpr uid_t kUser = 54'361;
    if (const std::string why = no_other_user(CURB_BINARY); !why.empty()) return skip(why);
    const stand_in::Runtime runtime;
    for (const fs::path &folder : {runtime.path(), runtime.folder()})
        REQUIRE(::chown(folder.c_str(), kUser, kUser) == 0);
    const auto one = [&](const std::string &release) {
        const auto answer = [release](int listening) {
            for (;;) answer_to(stand_in::client_of(listening), release);
        };
        return std::make_unique<stand_in::StandIn>(runtime, answer, becoming(kUser));
    };
    const auto silent = one(""), good = one(control::text(control::Reply(ReleaseReport{})) + "\n");
    Running all({CURB_BINARY, "release", "--all"}, {{"XDG_RUNTIME_DIR", runtime.path().string()}}, becoming(kUser));
    CHECK_THAT(all.says(20s), contains(good->text() + ": released 0 B"));
    CHECK(all.end() == 1);
}

TEST_CASE("what a process answers does not steer the terminal") {
    const stand_in::Runtime runtime;
    const std::string evil = "\u009B2J\u202E\x1b[31m";
    const bool fails = GENERATE(true, false);
    ReleaseReport report;
    report.trigger = evil;
    report.steps.push_back({Step::pools, 0, 0, evil});
    const std::string line = control::text(fails ? control::Reply(Failure{evil}) : control::Reply(report)) + "\n";
    const stand_in::StandIn process(
        runtime,
        [&](int listening) {
            for (;;) answer_to(stand_in::client_of(listening), line);
        },
        [] { ::prctl(PR_SET_NAME, "\u009B2J"); });
    const std::string pid = std::to_string(process.pid());
    for (const Words &words :
         std::vector<Words>{{"release", pid}, {"cap", pid, "1GiB"}, {"suspend", pid}, {"resume", pid}, {"ps", pid}}) {
        CAPTURE(words);
        Words command = words;
        command.insert(command.begin(), CURB_BINARY);
        const Outcome outcome = start({command, {{"XDG_RUNTIME_DIR", runtime.path().string()}}, {}, {}, {}});
        const std::string shown = outcome.out + outcome.err;
        CAPTURE(shown);
        CHECK(!shown.empty());
        for (const char *acted_on : {"\u009B", "\u202E", "\x1b"}) CHECK(count(shown, acted_on) == 0);
    }
}

TEST_CASE("curb release says what is wrong with what was typed") {
    const TempDir runtime;
    const auto complaint = [&](Words words) {
        const Outcome outcome = release(runtime, std::move(words));
        CHECK(outcome.status == 125);
        CHECK(outcome.out.empty());
        return outcome.err;
    };
    CHECK_THAT(complaint({}), contains("which process?"));
    CHECK_THAT(complaint({"1", "--all"}), contains("not both"));
    for (const char *pid : {"0", "-1", "x", "007", "99999999999", ""})
        CHECK_THAT(complaint({"--", pid}), contains("not the pid"));
    CHECK_THAT(complaint({"1", "--step", "pool"}), contains("pools"));
    CHECK_THAT(complaint({"1", "--bytes", "75%"}), contains("a share of which device?"));
    CHECK_THAT(complaint({"1", "--bytes", "2Gib"}), contains("--bytes: "));
    CHECK_THAT(complaint({"1", "--bytes", "2"}), contains("--bytes: '2' has no unit; did you mean \"2GiB\"?"));
    CHECK_THAT(complaint({"1", "--bytes", "0B"}), contains("asks for nothing"));
}

TEST_CASE("curb release says why a process cannot be asked", "[foreign]") {
    const TempDir runtime;
    const auto complaint = [&](int pid) {
        const Outcome outcome = release(runtime, {std::to_string(pid)});
        CHECK(outcome.status == 1);
        return outcome.err;
    };
    CHECK_THAT(complaint(::getpid()), contains("does not run under curb; start it by: curb run"));
    Capped asleep(runtime.path(), {.command = {CURB_SCENARIOS "-not-there"},
                                   .environment = {},
                                   .prepare = [] { ::execl("/bin/sh", "sh", "-c", "echo ready; read end", nullptr); },
                                   .socket = false});
    CHECK_THAT(complaint(asleep.pid()), contains("has not used CUDA yet"));
    Capped stopped(runtime.path());
    ::kill(stopped.pid(), SIGSTOP);
    CHECK_THAT(complaint(stopped.pid()), contains("has not answered for 5 s: it is stopped; kill -CONT"));
    ::kill(stopped.pid(), SIGCONT);
    CHECK(release(runtime, {stopped.id()}).status == 0);
}

TEST_CASE("a process is found though the other's environment names another folder") {
    const TempDir runtime, other;
    Capped process(runtime.path());
    CHECK(release(other, {process.id()}).status == 0);
}

TEST_CASE("while a release waits for Python's lock the status is told, and another release joins it", "[foreign]") {
    const TempDir runtime;
    Capped process(runtime.path(), python());
    CHECK(process("hold") == "holding");
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

TEST_CASE("who asks for a release and goes away leaves it going, and the next is answered", "[foreign]") {
    const TempDir runtime;
    Capped process(runtime.path(), python());
    CHECK(process("hold") == "holding");
    for (int i = 0; i < 10; ++i)
        CHECK_THAT(refusal(ask(process.pid(), policy::ReleaseRequest(), 50ms)), contains("has not answered for 50 ms"));
    process.tell("");
    CHECK(process.says() == "free");
    CHECK(!released(ask(process.pid(), policy::ReleaseRequest(), kForEver)).steps.empty());
}

TEST_CASE("who waits for a process that ends is told so", "[foreign]") {
    const TempDir runtime;
    Capped process(runtime.path(), python());
    CHECK(process("hold") == "holding");
    REQUIRE(within(10s, [&] { return process.clients() == 0; }));
    control::Reply reply;
    std::thread waiting([&] { reply = ask(process.pid(), policy::ReleaseRequest(), kForEver); });
    REQUIRE(within(10s, [&] { return process.clients() == 1; }));
    CHECK(process.killed() == 128 + SIGKILL);
    waiting.join();
    CHECK(refusal(reply) == "process " + process.id() + " ended before it answered");
}

TEST_CASE("at the normal end of a process no socket is left") {
    const TempDir runtime;
    Capped process(runtime.path());
    CHECK(!process.socket().empty());
    CHECK(process.finish() == 0);
    CHECK(process.socket().empty());
    CHECK(fs::is_empty(runtime / "curb"));
}

TEST_CASE("the socket of a killed process is deleted by whoever comes next") {
    const TempDir runtime;
    const bool by_a_process = GENERATE(false, true);
    Capped dead(runtime.path());
    CHECK(dead.killed() == 128 + SIGKILL);
    REQUIRE(!dead.socket().empty());
    if (by_a_process) {
        Capped next(runtime.path());
        CHECK(within(10s, [&] { return dead.socket().empty(); }));
        CHECK(!next.socket().empty());
    } else {
        CHECK(refusal(ask(dead.pid(), StatusRequest(), 1s)) == "there is no process " + dead.id());
        ::setenv("XDG_RUNTIME_DIR", runtime.path().c_str(), 1);
        CHECK(control::processes() != std::vector<int>{dead.pid()});
        ::unsetenv("XDG_RUNTIME_DIR");
        CHECK(dead.socket().empty());
    }
}

TEST_CASE("a socket of an earlier process with the same pid is not taken for this one's") {
    const TempDir runtime;
    Capped process(runtime.path());
    Capped dead(runtime.path());
    CHECK(dead.killed() == 128 + SIGKILL);
    const fs::path earlier = runtime / "curb" / (process.id() + "-1.sock");
    fs::rename(dead.socket(), earlier);
    CHECK(status(process).pid == process.pid());
    CHECK(fs::exists(process.socket()));
    // And one that somebody else listens on is not, either.
    Capped other(runtime.path());
    fs::remove(earlier);
    fs::rename(other.socket(), earlier);
    CHECK(status(process).pid == process.pid());
}

TEST_CASE("a fork child that ends leaves the socket to its parent", "[fork-child]") {
    const TempDir runtime;
    Capped process(runtime.path());
    CHECK(process("fork and end") == "ok");
    CHECK(!process.socket().empty());
    CHECK(status(process).pid == process.pid());
}

TEST_CASE("a fork child keeps nobody waiting for its dead parent") {
    const TempDir runtime;
    Capped process(runtime.path());
    const pid_t child = std::stoi(process("fork and stay"));
    CHECK(process.killed() == 128 + SIGKILL);
    CHECK(::kill(child, 0) == 0);
    ::setenv("XDG_RUNTIME_DIR", runtime.path().c_str(), 1);
    control::processes();
    ::unsetenv("XDG_RUNTIME_DIR");
    CHECK(process.socket().empty());  // nobody listens any more
    ::kill(child, SIGKILL);
}

TEST_CASE("a program that replaces itself can be asked again once it uses CUDA") {
    const TempDir runtime;
    Capped process(runtime.path());
    CHECK(process("exec") == "ready");
    CHECK(process.can_be_asked());
}

TEST_CASE("a program that replaces itself by one without CUDA is said to have", "[foreign]") {
    const TempDir runtime;
    Capped process(runtime.path());
    CHECK(process("exec sh") == "ok");
    CHECK_THAT(refusal(ask(process.pid(), StatusRequest(), 1s)),
               contains("no longer listens") && contains("replaced itself"));
    CHECK(process.socket().empty());
}

TEST_CASE("a relative XDG_RUNTIME_DIR is ignored, and the folder below /tmp is taken") {
    const TempDir runtime;
    Capped process(runtime.path(), {.environment = {{"XDG_RUNTIME_DIR", "relative"}}});
    CHECK(process.socket().empty());
    CHECK(process.finish() == 0);
}

TEST_CASE("where no folder can be had the process runs on without a socket, and its log says why") {
    if (const std::string why = no_other_user(CURB_BINARY); !why.empty()) return skip(why);
    constexpr uid_t kUser = 54'323;
    const fs::path taken = "/tmp/curb-54323";
    fs::create_directory(taken);
    const TempDir runtime;
    const std::string policy = runtime.write("job.json", R"({ "version": 1, "log": { "level": "info" } })");
    fs::permissions(runtime.path(), fs::perms(0755));
    Capped process(runtime.path(),
                   {.environment = {{"CURB_POLICY", policy}}, .prepare = becoming(kUser), .socket = false});
    CHECK(within(10s, [&] { return process.log().find("no control socket") != std::string::npos; }));
    CHECK_THAT(process.log(), contains("/tmp/curb-54323: it belongs to user 0, not to user 54323; remove it") &&
                                  contains(runtime.path().string() + ": it belongs to user 0"));
    CHECK_THAT(refusal(ask(process.pid(), StatusRequest(), 1s)), contains("has no control socket"));
    CHECK(process("pool") == "ok");
    CHECK(process.finish() == 0);
    fs::remove(taken);
}

TEST_CASE("on a terminal curb release says what it waits for, and an interrupt leaves the release going", "[foreign]") {
    const TempDir runtime;
    Capped process(runtime.path(), python());
    CHECK(process("hold") == "holding");
    Terminal terminal;
    const int side = ::open(terminal.name().c_str(), O_RDWR | O_NOCTTY | O_CLOEXEC);
    REQUIRE(side >= 0);
    Running command({CURB_BINARY, "release", process.id()}, {{"XDG_RUNTIME_DIR", runtime.path().string()}}, {}, side);
    terminal.until("waiting for process " + process.id() + ": a release waits for Python's lock");
    command.kill(SIGINT);
    CHECK(command.end() == 128 + SIGINT);
    ::close(side);
    process.tell("");
    CHECK(process.says() == "free");
    CHECK(!released(ask(process.pid(), policy::ReleaseRequest(), kForEver)).steps.empty());
}
