// What a capped process answers from outside, and curb release with it.

#include <sys/socket.h>
#include <sys/un.h>

#include <variant>

#include "control/runtime_dir.hpp"
#include "start.hpp"
#include "steered.hpp"

using namespace curb;
using control::ask;
using control::Failure;
using control::kForEver;
using control::ReleaseReport;
using control::Status;
using control::StatusRequest;
using policy::MiB;
using policy::Step;
using steered::kHoldsTheLock;
using steered::refusal;
using Clock = std::chrono::steady_clock;

namespace {

constexpr auto kContext = static_cast<std::int64_t>(518 * MiB);

// Under a cap the books count the context too.
Capped::How capped_at_8_gib() { return {.environment = {{"CURB_CAP", "8GiB"}}}; }

ReleaseReport released(const control::Reply &reply) {
    if (const auto *failure = std::get_if<Failure>(&reply)) FAIL(failure->message);
    REQUIRE(std::holds_alternative<ReleaseReport>(reply));
    return std::get<ReleaseReport>(reply);
}
std::int64_t freed_by(const ReleaseReport &report, Step step) {
    for (const auto &one : report.steps)
        if (one.step == step) return one.freed;
    return -1;
}

Outcome release(const fs::path &runtime, Words words) {
    words.insert(words.begin(), {CURB_BINARY, "release"});
    return start({words, {{"XDG_RUNTIME_DIR", runtime.string()}}, {}, {}, {}});
}
std::string text_of(int pid) { return std::to_string(pid); }

Capped::How python() { return {{CURB_PYTHON, "-c", kHoldsTheLock}, {{"PYTHONUNBUFFERED", "1"}}, {}, true}; }

}  // namespace

TEST_CASE("a process says what it holds, also while it computes") {
    const TempDir runtime;
    Capped process(runtime.path(), capped_at_8_gib());
    const bool computing = GENERATE(false, true);
    if (computing) CHECK(process("compute") == "ok");
    auto quickest = Clock::duration::max();
    for (int i = 0; i < 20; ++i) {
        const auto begin = Clock::now();
        const auto reply = ask(process.pid(), StatusRequest(), 10s);
        quickest = std::min(quickest, Clock::now() - begin);
        REQUIRE(std::holds_alternative<Status>(reply));
        const auto &status = std::get<Status>(reply);
        CHECK(status.pid == process.pid());
        CHECK(!status.version.empty());
        REQUIRE(status.gpus.size() == 1);
        CHECK(status.gpus[0].ordinal == 0);
        CHECK_THAT(status.gpus[0].uuid, contains("GPU-"));
        CHECK(status.gpus[0].held >= static_cast<policy::Bytes>(kContext));
        CHECK(status.gpus[0].contexts == 1);
    }
    CHECK(quickest < 50ms);
}

TEST_CASE("what it says it holds is what the driver says") {
    const TempDir runtime;
    Capped process(runtime.path(), capped_at_8_gib());
    CHECK(process("pool") == "ok");
    const auto reply = ask(process.pid(), StatusRequest(), 10s);
    REQUIRE(std::holds_alternative<Status>(reply));
    CHECK(std::to_string(std::get<Status>(reply).gpus.at(0).held) == process("held"));
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
    const Outcome outcome = release(runtime.path(), {text_of(process.pid())});
    CHECK(outcome.status == 0);
    CHECK(outcome.err.empty());
    const Words out = lines(outcome.out);
    REQUIRE(out.size() == 1 + policy::kSteps);
    CHECK_THAT(out[0], contains("process " + text_of(process.pid()) + ": released 256 MiB in "));
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
    const std::string pid = text_of(process.pid());
    const Outcome outcome = release(runtime.path(), {"--step", "pools", pid, "--bytes", "1GiB", "--json"});
    CHECK(outcome.status == 0);
    CHECK_THAT(outcome.out,
               contains(R"([{"pid":)" + pid + R"(,"trigger":"curb release","steps":[{"step":"pools","freed":)" +
                        std::to_string(256 * MiB) + R"(,"milliseconds":)") &&
                   contains(R"(,"reason":""}],"freed":)" + std::to_string(256 * MiB) + R"(,"milliseconds":)"));
    const Outcome dead = release(runtime.path(), {"--json", "2147483647"});
    CHECK(dead.status == 1);
    CHECK(dead.out == "[{\"pid\":2147483647,\"error\":\"there is no process 2147483647\"}]\n");
}

TEST_CASE("curb release --all asks all processes of the user") {
    // Not as root, who would ask everybody's on this machine.
    constexpr uid_t kNobodyElse = 54'321;
    if (::geteuid() != 0) return skip("only root can become a user whose processes are all the test's own");
    const TempDir runtime;
    REQUIRE(::chown(runtime.path().c_str(), kNobodyElse, kNobodyElse) == 0);
    const auto become = [] {
        if (::setgid(kNobodyElse) != 0 || ::setuid(kNobodyElse) != 0) ::_exit(97);
    };
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
        CHECK_THAT(outcome.out, contains("process " + text_of(process->pid()) + ": released 256 MiB"));
        CHECK((*process)("held") == std::to_string(kContext));
    }
    CHECK(last_line(outcome.out) == "768 MiB in all, of 3 processes");

    const Outcome roots = release("/nonexistent", {text_of(first.pid())});  // by the process's own environment
    CHECK(roots.status == 0);
    const Outcome others = start({{CURB_BINARY, "release", text_of(first.pid())}, {}, {}, {}, [] {
                                      if (::setuid(kNobodyElse + 1) != 0) ::_exit(97);
                                  }});
    CHECK(others.status == 1);
    CHECK_THAT(others.err, contains("belongs to user 54321: ask as that user, or as root"));
}

TEST_CASE("curb release says what is wrong with what was typed") {
    const TempDir runtime;
    const auto complaint = [&](Words words) {
        const Outcome outcome = release(runtime.path(), std::move(words));
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
    CHECK_THAT(complaint({"1", "--bytes", "0"}), contains("asks for nothing"));
}

TEST_CASE("curb release says why a process cannot be asked", "[foreign]") {
    const TempDir runtime;
    const auto complaint = [&](int pid) {
        const Outcome outcome = release(runtime.path(), {text_of(pid)});
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
    CHECK(release(runtime.path(), {text_of(stopped.pid())}).status == 0);
}

TEST_CASE("a process is found though the other's environment names another folder") {
    const TempDir runtime, other;
    Capped process(runtime.path());
    CHECK(release(other.path(), {text_of(process.pid())}).status == 0);
}

TEST_CASE("while a release waits for Python's lock the status is told, and another release joins it", "[foreign]") {
    const TempDir runtime;
    Capped process(runtime.path(), python());
    CHECK(process("hold") == "holding");
    control::Reply first, second;
    std::thread one([&] { first = ask(process.pid(), policy::ReleaseRequest(), kForEver); });
    std::thread two([&] { second = ask(process.pid(), policy::ReleaseRequest(), kForEver); });
    auto quickest = Clock::duration::max();
    for (int i = 0; i < 20; ++i) {
        const auto begin = Clock::now();
        CHECK(std::holds_alternative<Status>(ask(process.pid(), StatusRequest(), 10s)));
        quickest = std::min(quickest, Clock::now() - begin);
    }
    CHECK(quickest < 50ms);
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
    CHECK(refusal(reply) == "process " + text_of(process.pid()) + " ended before it answered");
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
        CHECK(refusal(ask(dead.pid(), StatusRequest(), 1s)) == "there is no process " + text_of(dead.pid()));
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
    const fs::path earlier = runtime / "curb" / (text_of(process.pid()) + "-1.sock");
    fs::rename(dead.socket(), earlier);
    CHECK(std::holds_alternative<Status>(ask(process.pid(), StatusRequest(), 10s)));
    CHECK(fs::exists(process.socket()));
    // And one that somebody else listens on is not, either.
    Capped other(runtime.path());
    fs::remove(earlier);
    fs::rename(other.socket(), earlier);
    const auto reply = ask(process.pid(), StatusRequest(), 10s);
    REQUIRE(std::holds_alternative<Status>(reply));
    CHECK(std::get<Status>(reply).pid == process.pid());
}

TEST_CASE("a fork child that ends leaves the socket to its parent") {
    const TempDir runtime;
    Capped process(runtime.path());
    CHECK(process("fork and end") == "ok");
    CHECK(!process.socket().empty());
    CHECK(std::holds_alternative<Status>(ask(process.pid(), StatusRequest(), 10s)));
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
    if (::geteuid() != 0) return skip("only root can take another user's folder away");
    constexpr uid_t kUser = 54'323;
    const fs::path taken = "/tmp/curb-54323";
    fs::create_directory(taken);
    const TempDir runtime;
    const std::string policy = runtime.write("job.json", R"({ "version": 1, "log": { "level": "info" } })");
    fs::permissions(runtime.path(), fs::perms(0755));
    Capped process(runtime.path(), {.environment = {{"CURB_POLICY", policy}},
                                    .prepare =
                                        [] {
                                            if (::setgid(kUser) != 0 || ::setuid(kUser) != 0) ::_exit(97);
                                        },
                                    .socket = false});
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
    const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    REQUIRE(terminal >= 0);
    REQUIRE(::grantpt(terminal) == 0);
    REQUIRE(::unlockpt(terminal) == 0);
    const std::string name = ::ptsname(terminal), pid = text_of(process.pid());
    const pid_t command = ::fork();
    if (command == 0) {
        ::dup2(::open(name.c_str(), O_RDWR | O_NOCTTY), 2);
        ::execl(CURB_BINARY, CURB_BINARY, "release", pid.c_str(), nullptr);
        ::_exit(98);
    }
    std::string said;
    while (said.find('\n') == std::string::npos) {
        pollfd readable{terminal, POLLIN, 0};
        char block[256];
        const ssize_t got = ::poll(&readable, 1, 30'000) > 0 ? ::read(terminal, block, sizeof block) : 0;
        if (got <= 0) break;
        said.append(block, static_cast<std::size_t>(got));
    }
    CHECK_THAT(said, contains("waiting for process " + pid + ": a release waits for Python's lock"));
    ::kill(command, SIGINT);
    int status = 0;
    ::waitpid(command, &status, 0);
    CHECK(WIFSIGNALED(status));
    ::close(terminal);
    process.tell("");
    CHECK(process.says() == "free");
    CHECK(!released(ask(process.pid(), policy::ReleaseRequest(), kForEver)).steps.empty());
}
