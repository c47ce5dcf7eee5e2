// The status of a capped process, compared with what the test did to it and with the simulated driver's own books.

#include <numeric>

#include "control/board.hpp"
#include "steered.hpp"

using namespace steered;
using policy::Limit;
using policy::Step;

namespace {

std::uint64_t refused_by(const Status &status, Limit why) {
    return status.gpus.at(0).refused[static_cast<std::size_t>(why)];
}
std::uint64_t refused(const Status &status) {
    const auto &all = status.gpus.at(0).refused;
    return std::accumulate(all.begin(), all.end(), std::uint64_t{0});
}
Bytes released_by(const Status &status, Step step) {
    return status.gpus.at(0).released[static_cast<std::size_t>(step)];
}

}  // namespace

TEST_CASE("a status has the process's start, its release signal and its policy") {
    const control::UnixMs before = control::unix_now();
    Capped process(under(R"({ "version": 1, "release": { "signal": "SIGUSR2" },
        "gpu": { "*": { "cap": "4GiB", "growth": { "start": "1GiB", "step": "512MiB", "every": "1h" } } },
        "rules": [ { "name": "mine", "match": { "exe": "scenarios" }, "gpu": { "*": { "cap": "2GiB" } } } ] })"));
    const Status said = status(process);
    CHECK(said.pid == process.pid());
    CHECK(!said.version.empty());
    CHECK_THAT(said.gpus.at(0).uuid, contains("GPU-"));
    CHECK(said.gpus[0].contexts == 1);
    CHECK(said.since >= before);
    CHECK(said.since <= control::unix_now());
    CHECK(said.signal == "SIGUSR2");
    CHECK(said.policy.file == process.policy().string());
    CHECK(said.policy.rule == "rule 1 \"mine\"");
    CHECK(said.policy.cap.empty());
    CHECK(!said.policy.unusable);
    CHECK(said.policy.since >= said.since);
    CHECK(said.policy.error.empty());
    CHECK(said.gpus.at(0).cap == 2 * GiB);
    CHECK(said.gpus[0].allowance == 1 * GiB);
    CHECK(said.gpus[0].total == 80 * GiB);
    CHECK(!said.gpus[0].ceiling);
}

TEST_CASE("a status has the pools, largest first, and the bytes that each release step gave back") {
    Capped process(how({{"CURB_CAP", "8GiB"}}));
    CHECK(process("pools") == "ok");
    const Status before = status(process);
    CHECK(before.gpus.at(0).pools == std::vector<Bytes>{256 * MiB, 128 * MiB, 64 * MiB});
    CHECK(std::to_string(before.gpus[0].held) == process("held"));
    CHECK(before.releases.empty());
    CHECK(before.policy.cap == "8GiB");
    for (int i = 0; i < 10; ++i) ask(process.pid(), policy::ReleaseRequest(), control::kForEver);
    const Status after = status(process);
    CHECK(after.gpus.at(0).pools.empty());
    CHECK(released_by(after, Step::pools) == 448 * MiB);
    CHECK(released_by(after, Step::cache) == 0);
    REQUIRE(after.releases.size() == 8);  // the last ones
    CHECK(after.releases.back().report.trigger == "curb release");
    CHECK(after.releases.back().at <= control::unix_now());
    CHECK(after.releases.front().at <= after.releases.back().at);
    CHECK(!after.releasing);
    CHECK(std::to_string(after.gpus[0].held) == process("held"));
}

TEST_CASE("a status counts refusals by the limit that caused them, as the log does, and lists the last ones") {
    Capped process(under(capped_at("1GiB")));
    CHECK(process("probe") == "ok");  // curb does not count requests larger than any device
    process("fill");
    const Status once = status(process);
    CHECK(refused_by(once, Limit::cap) == 1);
    CHECK(refused(once) == 1);
    REQUIRE(once.refusals.size() == 1);
    CHECK(once.refusals[0].why == Limit::cap);
    CHECK(once.refusals[0].bytes == 64 * MiB);
    CHECK(once.refusals[0].limit == 1 * GiB);
    CHECK(once.refusals[0].gpu == 0);
    CHECK(std::to_string(once.refusals[0].held) == process("held"));
    CHECK(once.refusals[0].at >= once.since);
    // curb refused 64 MiB, so held and kept free leave less than that of the cap.
    double held = 0, kept = 0;
    const std::string log = process.log();
    REQUIRE(std::sscanf(log.substr(log.find("cuda:0: ")).c_str(),
                        "cuda:0: %lf MiB of the cap of 1 GiB is held, %lf MiB more is kept free for code", &held,
                        &kept) == 2);
    CHECK(held + kept <= 1024);
    CHECK(held + kept > 1024 - 64);
    for (int i = 0; i < 20; ++i) CHECK(process("take") == "refused");
    const Status often = status(process);
    CHECK(refused_by(often, Limit::cap) == 21);
    CHECK(often.refusals.size() == 16);
}

TEST_CASE("a status distinguishes refusals by the allowance, by keep_free and by a full device") {
    const auto met = [](const std::string &policy, const std::string &memory) {
        Capped::How with = under(R"({ "version": 1, "gpu": { "*": )" + policy + " } }");
        with.environment["CURB_SIM_MEMORY"] = memory;
        Capped process(with);
        process("fill");
        const Status said = status(process);
        REQUIRE(said.refusals.size() == 1);
        CHECK(refused(said) == 1);
        CHECK(refused_by(said, said.refusals[0].why) == 1);
        return said.refusals[0];
    };
    const auto allowance = met(R"({ "growth": { "start": "1GiB", "step": "1GiB", "every": "1h" } })", "80GiB");
    CHECK(allowance.why == Limit::allowance);
    // The first step may be due at once.
    CHECK((allowance.limit == 1 * GiB || allowance.limit == 2 * GiB));
    const auto keep_free = met(R"({ "growth": { "keep_free": "3GiB" } })", "4GiB");
    CHECK(keep_free.why == Limit::keep_free);
    CHECK(keep_free.limit == 3 * GiB);
    const auto device = met("{}", "2GiB");
    CHECK(device.why == Limit::device);
    CHECK(device.limit == 0);
}

TEST_CASE("a status has the error of an invalid policy, and counts its refusals") {
    Capped::How with = under(R"({ "version": 1, "gpu": { "*": { "cap": "8Gib" } } })");
    Capped process(with);
    CHECK(process("take") == "refused");
    const Status said = status(process);
    CHECK(said.policy.unusable);
    CHECK_THAT(said.policy.error, contains("job.json:1:") && contains("/gpu/*/cap: '8Gib' is not a size"));
    CHECK(refused_by(said, Limit::policy) == 1);
    process.write(capped_at("8GiB"));
    CHECK(within(5s, [&] { return status(process).gpus.at(0).cap == 8 * GiB; }));
    CHECK(status(process).policy.error.empty());
    CHECK(!status(process).policy.unusable);
    CHECK(process("take") == "ok");
}

TEST_CASE("a status lists requests that wait: for what, since when and until when") {
    Capped process(under(capped_at("4GiB", R"(, "growth": { "start": "640MiB", "step": "1GiB",
        "every": "1h", "wait": "50s" })")));
    const control::UnixMs began = control::unix_now();
    for (int i = 0; i < 2; ++i) CHECK(process("ask") == "ok");
    CHECK(within(5s, [&] { return status(process).gpus.at(0).waiting >= 1; }));
    const Status said = status(process);
    REQUIRE(said.waits.size() == said.gpus.at(0).waiting);
    const control::Waiting &first = said.waits.at(0);
    CHECK(first.gpu == 0);
    CHECK(first.thread > process.pid());
    CHECK(first.bytes == 64 * policy::MiB);
    CHECK(first.why == policy::Limit::allowance);
    CHECK(first.since >= began - 100);
    CHECK(first.since <= control::unix_now());
    CHECK(first.until == first.since + 50'000);
    REQUIRE(first.step.has_value());
    CHECK(*first.step > began + 3'000'000);
    const auto doctor = [&] {
        return process.curb({"doctor", process.id()}).out;
    };  // reports a wait after some seconds
    CHECK(within(20s, [&] { return doctor().find("it waits on cuda:0 for 64 MiB, ") != std::string::npos; }));
    CHECK_THAT(doctor(), contains("it hit the allowance; the next growth step is due in "));
    CHECK(said.gpus[0].waited >= 1);
    CHECK(refused(said) == 0);
}

TEST_CASE("a status names no release signal that the program ignores") {
    Capped ignoring({.environment = {}, .prepare = [] { ::signal(SIGUSR1, SIG_IGN); }});
    CHECK(status(ignoring).signal == "none");
    CHECK(status(ignoring).signal_trouble == "the program ignores SIGUSR1");
    Capped named(under(R"({ "version": 1, "release": { "signal": "none" } })"));
    CHECK(status(named).signal == "none");
    CHECK(status(named).signal_trouble.empty());
    Capped usual(how({}));
    CHECK(status(usual).signal == "SIGUSR1");
    CHECK(status(usual).signal_trouble.empty());
    CHECK(usual("ignore the signal") == "ok");
    CHECK(status(usual).signal == "none");
    CHECK(status(usual).signal_trouble == "the program ignores SIGUSR1");
    CHECK(within(20s, [&] { return usual.log().find("the program ignores SIGUSR1, which") != std::string::npos; }));
    CHECK_THAT(usual.curb({"ps", usual.id()}).out, contains("none asks for a release: the program ignores SIGUSR1"));
}

TEST_CASE("status and live caps are answered within 50 ms while threads allocate and a release waits for the device") {
    Capped process(how({{"CURB_CAP", "4GiB"}}));
    CHECK(process("pools") == "ok");
    CHECK(process("work") == "ok");
    CHECK(process("compute") == "ok");
    std::thread releasing([&] { ask(process.pid(), policy::ReleaseRequest(), control::kForEver); });
    REQUIRE(within(2s, [&] { return status(process).releasing; }));
    CHECK(quickest([&] { status(process); }) < 50ms);
    int size = 0;
    CHECK(quickest([&] { set(process, cap((++size % 2) != 0 ? "2GiB" : "3GiB")); }) < 50ms);
    CHECK(process("total") == std::to_string(3 * GiB));
    CHECK(status(process).releasing);
    releasing.join();
    CHECK(!status(process).releasing);
}

namespace {

namespace board = control::board;

std::string file_on_board(int pid) {
    const auto folder = control::public_directory(control::places(), ::geteuid());
    const auto process = control::name_of(pid);
    REQUIRE((folder && process));
    return folder->path + "/" + board::name_of(*process);
}
// True once the process's entry on the board is as `is` wants it.
template <class Is>
bool comes_on_board(int pid, Is is) {
    return within(10s, [&] {
        const auto all = board::read_all(control::places());
        return std::any_of(all.begin(), all.end(), [&](const board::Posted &one) {
            return one.entry.process.pid == pid && one.entry.gpus.size() == 1 && is(one.entry, one.entry.gpus[0]);
        });
    });
}

}  // namespace

TEST_CASE("all users see what a process holds, its cap and what it waits for, as far as its policy shares that") {
    const auto policy = [](const std::string &share) {
        return R"({ "version": 1, "share": ")" + share +
               R"(", "gpu": { "*": { "cap": "2GiB", "growth": { "keep_free": "81390MiB", "wait": "50s" } } } })";
    };
    Capped process({.policy = policy("all")});
    const auto is_running = [&](const board::Entry &entry, const board::Gpu &gpu) {
        return entry.state == board::State::running && gpu.held >= kContext && gpu.cap == 2 * GiB && gpu.wants == 0;
    };
    CHECK(comes_on_board(process.pid(), is_running));
    CHECK(process("ask") == "ok");
    CHECK(comes_on_board(process.pid(), [&](const board::Entry &entry, const board::Gpu &gpu) {
        return entry.state == board::State::waiting && gpu.held >= kContext && gpu.wants > 0 && gpu.since > 0;
    }));
    process.edit(policy("order"));
    CHECK(comes_on_board(process.pid(), [](const board::Entry &entry, const board::Gpu &gpu) {
        return entry.state == board::State::waiting && !gpu.held && !gpu.cap && gpu.wants > 0;
    }));
    const std::string file = file_on_board(process.pid());
    CHECK(fs::is_symlink(file));
    process.edit(policy("none"));
    CHECK(within(10s, [&] { return !fs::is_symlink(file); }));
}

TEST_CASE("a process that ends takes its file from the board, and one that was killed leaves it to the next") {
    Capped process(how({})), killed(how({}));
    const auto any = [](const board::Entry & /*entry*/, const board::Gpu & /*gpu*/) { return true; };
    REQUIRE(comes_on_board(process.pid(), any));
    REQUIRE(comes_on_board(killed.pid(), any));
    const std::string file = file_on_board(process.pid()), left = file_on_board(killed.pid());
    CHECK(process.finish() == 0);
    CHECK(!fs::is_symlink(file));
    CHECK(killed.killed() == 128 + SIGKILL);
    CHECK(fs::is_symlink(left));
    Capped next(how({}));
    CHECK(within(10s, [&] { return !fs::is_symlink(left); }));
}
