// What a process says of itself, against what was done to it and what the simulated driver has in its books.

#include <numeric>

#include "steered.hpp"

using namespace steered;
using policy::Obstacle;
using policy::Step;

namespace {

std::uint64_t refused_by(const Status &status, Obstacle why) {
    return status.gpus.at(0).refused[static_cast<std::size_t>(why)];
}
std::uint64_t refused(const Status &status) {
    const auto &all = status.gpus.at(0).refused;
    return std::accumulate(all.begin(), all.end(), std::uint64_t{0});
}
Bytes released_by(const Status &status, Step step) {
    return status.gpus.at(0).released[static_cast<std::size_t>(step)];
}
control::UnixMs now() {
    return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
        .count();
}

}  // namespace

TEST_CASE("a process without a cap says what its context holds, when it is asked for the first time") {
    const TempDir runtime;
    Capped process(runtime.path(), how({}));
    // The books were held against the device when the test waited for it to be asked; what is taken now is charged.
    CHECK(process("take") == "ok");
    const Status said = status(process);
    CHECK(std::to_string(said.gpus.at(0).held) == process("held"));
    CHECK(said.gpus[0].held == kContext + 64 * MiB);
    const auto &kinds = said.gpus[0].kinds;
    CHECK(kinds[static_cast<std::size_t>(policy::Kind::plain)] == 64 * MiB);
    CHECK(std::accumulate(kinds.begin(), kinds.end(), Bytes{0}) == said.gpus[0].held);
    CHECK(!said.gpus[0].cap);
    CHECK(!said.gpus[0].allowance);
    CHECK(!said.gpus[0].live_cap);
    control::PolicyStatus nothing;
    nothing.since = said.policy.since;
    CHECK(said.policy == nothing);
}

TEST_CASE("a status says since when, by what signal and under which policy") {
    const TempDir runtime;
    const control::UnixMs before = now();
    Capped process(runtime.path(), under(runtime, R"({ "version": 1, "release": { "signal": "SIGUSR2" },
        "gpu": { "*": { "cap": "4GiB", "growth": { "start": "1GiB", "step": "512MiB", "every": "1h" } } },
        "rules": [ { "name": "mine", "match": { "exe": "scenarios" }, "gpu": { "*": { "cap": "2GiB" } } } ] })"));
    const Status said = status(process);
    CHECK(said.since >= before);
    CHECK(said.since <= now());
    CHECK(said.signal == "SIGUSR2");
    CHECK(said.policy.file == (runtime / "job.json").string());
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

TEST_CASE("a status tells of pools, the largest first, and of what a release gave back by step") {
    const TempDir runtime;
    Capped process(runtime.path(), how({{"CURB_CAP", "8GiB"}}));
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
    CHECK(after.releases.back().at <= now());
    CHECK(after.releases.front().at <= after.releases.back().at);
    CHECK(!after.releasing);
    CHECK(std::to_string(after.gpus[0].held) == process("held"));
}

TEST_CASE("a status tells of blocks that are kept for reuse") {
    const TempDir runtime;
    Capped process(runtime.path(), under(runtime, capped_at("4GiB", R"(, "cache": { "max": "1GiB", "idle": "1h" })")));
    CHECK(process("take") == "ok");
    CHECK(status(process).gpus.at(0).cached == 0);
    CHECK(process("drop") == "ok");
    const Status kept = status(process);
    CHECK(kept.gpus.at(0).cached == 64 * MiB);
    CHECK(kept.gpus[0].held >= kContext + 64 * MiB);
    ask(process.pid(), policy::ReleaseRequest(), control::kForEver);
    CHECK(status(process).gpus.at(0).cached == 0);
    CHECK(released_by(status(process), Step::cache) == 64 * MiB);
}

TEST_CASE("a refusal is counted by what it met, as the log says it, and the last ones are told") {
    const TempDir runtime;
    Capped process(runtime.path(), under(runtime, capped_at("1GiB")));
    process("fill");
    const Status once = status(process);
    CHECK(refused_by(once, Obstacle::cap) == 1);
    CHECK(refused(once) == 1);
    REQUIRE(once.refusals.size() == 1);
    CHECK(once.refusals[0].why == Obstacle::cap);
    CHECK(once.refusals[0].bytes == 64 * MiB);
    CHECK(once.refusals[0].limit == 1 * GiB);
    CHECK(once.refusals[0].gpu == 0);
    CHECK(std::to_string(once.refusals[0].held) == process("held"));
    CHECK(once.refusals[0].at >= once.since);
    // 64 MiB were refused: what is held and what is kept leave less than that of the cap.
    double held = 0, kept = 0;
    const std::string log = process.log();
    REQUIRE(std::sscanf(log.substr(log.find("cuda:0: ")).c_str(),
                        "cuda:0: %lf MiB of the cap of 1 GiB is held, %lf MiB more is kept free for code", &held,
                        &kept) == 2);
    CHECK(held + kept <= 1024);
    CHECK(held + kept > 1024 - 64);
    for (int i = 0; i < 20; ++i) CHECK(process("take") == "refused");
    const Status often = status(process);
    CHECK(refused_by(often, Obstacle::cap) == 21);
    CHECK(often.refusals.size() == 16);
}

TEST_CASE("sizes that no device has, by which programs probe, are not counted") {
    const TempDir runtime;
    Capped process(runtime.path(), how({{"CURB_CAP", "1GiB"}}));
    CHECK(process("probe") == "ok");
    CHECK(refused(status(process)) == 0);
    CHECK(status(process).refusals.empty());
}

TEST_CASE("refusals by the allowance, by what is to stay free and by a full device are told apart") {
    const auto met = [](const std::string &policy, const std::string &memory) {
        const TempDir runtime;
        Capped::How with = under(runtime, R"({ "version": 1, "gpu": { "*": )" + policy + " } }");
        with.environment["CURB_SIM_MEMORY"] = memory;
        Capped process(runtime.path(), with);
        process("fill");
        const Status said = status(process);
        REQUIRE(said.refusals.size() == 1);
        CHECK(refused(said) == 1);
        CHECK(refused_by(said, said.refusals[0].why) == 1);
        return said.refusals[0];
    };
    const auto allowance = met(R"({ "growth": { "start": "1GiB", "step": "1GiB", "every": "1h" } })", "80GiB");
    CHECK(allowance.why == Obstacle::allowance);
    // The first step may be due at once.
    CHECK((allowance.limit == 1 * GiB || allowance.limit == 2 * GiB));
    const auto keep_free = met(R"({ "growth": { "keep_free": "3GiB" } })", "4GiB");
    CHECK(keep_free.why == Obstacle::keep_free);
    CHECK(keep_free.limit == 3 * GiB);
    const auto device = met("{}", "2GiB");
    CHECK(device.why == Obstacle::device);
    CHECK(device.limit == 0);
}

TEST_CASE("a policy that cannot be used is told with its reason, and what it refuses is counted") {
    const TempDir runtime;
    Capped::How with = under(runtime, R"({ "version": 1, "gpu": { "*": { "cap": "8Gib" } } })");
    Capped process(runtime.path(), with);
    CHECK(process("take") == "refused");
    const Status said = status(process);
    CHECK(said.policy.unusable);
    CHECK_THAT(said.policy.error, contains("job.json:1:") && contains("/gpu/*/cap: '8Gib' is not a size"));
    CHECK(refused_by(said, Obstacle::policy) == 1);
    runtime.write("job.json", capped_at("8GiB"));
    CHECK(within(5s, [&] { return status(process).gpus.at(0).cap == 8 * GiB; }));
    CHECK(status(process).policy.error.empty());
    CHECK(!status(process).policy.unusable);
    CHECK(process("take") == "ok");
}

TEST_CASE("a request that waits is told with what it waits for, since when and until when") {
    const TempDir runtime;
    Capped process(runtime.path(), under(runtime, capped_at("4GiB", R"(, "growth": { "start": "640MiB", "step": "1GiB",
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
    CHECK(first.why == policy::Obstacle::allowance);
    CHECK(first.since >= began - 100);
    CHECK(first.since <= control::unix_now());
    CHECK(first.until == first.since + 50'000);
    REQUIRE(first.step.has_value());
    CHECK(*first.step > began + 3'000'000);
    CHECK(said.gpus[0].waited >= 1);
    CHECK(refused(said) == 0);
}

TEST_CASE("a signal that the program has for itself is not told as one that asks for a release") {
    const TempDir runtime;
    Capped ignoring(runtime.path(), {.environment = {}, .prepare = [] { ::signal(SIGUSR1, SIG_IGN); }});
    CHECK(status(ignoring).signal == "none");
    CHECK(status(ignoring).signal_trouble == "the program ignores SIGUSR1");
    Capped named(runtime.path(), under(runtime, R"({ "version": 1, "release": { "signal": "none" } })"));
    CHECK(status(named).signal == "none");
    CHECK(status(named).signal_trouble.empty());
    Capped usual(runtime.path(), how({}));
    CHECK(status(usual).signal == "SIGUSR1");
    CHECK(status(usual).signal_trouble.empty());
    CHECK(usual("ignore the signal") == "ok");
    CHECK(status(usual).signal == "none");
    CHECK(status(usual).signal_trouble == "the program ignores SIGUSR1");
    CHECK(within(20s, [&] { return usual.log().find("the program ignores SIGUSR1, which") != std::string::npos; }));
    CHECK_THAT(curb_in(runtime, {"ps", std::to_string(usual.pid())}).out,
               contains("none asks for a release: the program ignores SIGUSR1"));
}

TEST_CASE("a status and a cap come at once while the device computes and a release waits for it") {
    const TempDir runtime;
    Capped process(runtime.path(), how({{"CURB_CAP", "4GiB"}}));
    CHECK(process("pools") == "ok");
    CHECK(process("compute") == "ok");
    std::thread releasing([&] { ask(process.pid(), policy::ReleaseRequest(), control::kForEver); });
    REQUIRE(within(2s, [&] { return status(process).releasing; }));
    CHECK(quickest([&] { status(process); }) < 50ms);
    int size = 0;
    CHECK(quickest([&] { set(process, cap((++size % 2) != 0 ? "2GiB" : "3GiB")); }) < 50ms);
    CHECK(process("told") == std::to_string(3 * GiB));
    CHECK(status(process).releasing);
    releasing.join();
    CHECK(!status(process).releasing);
}
