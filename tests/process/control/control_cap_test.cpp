// Live caps (`curb cap`), and edits of the policy beside them.

#include "raw_client.hpp"
#include "steered.hpp"

using namespace steered;

namespace {

std::uint64_t number(const std::string &text) { return std::stoull(text); }

// Waits until an edit of the policy is in force, or has been refused for this reason.
void comes_into_force(const Capped &process, Bytes cap) {
    CHECK(within(10s, [&] {
        const Status now = status(process);
        return now.gpus.at(0).cap == cap && now.policy.error.empty();
    }));
}
void is_refused(const Capped &process, const std::string &why) {
    CHECK(within(10s, [&] { return status(process).policy.error.find(why) != std::string::npos; }));
}
bool logs(const Capped &process, const std::string &text) {
    return within(10s, [&] { return process.log().find(text) != std::string::npos; });
}

}  // namespace

TEST_CASE("a live cap is in force when the answer comes, higher or lower than the policy's, until it is reset") {
    Capped process(under(capped_at("2GiB")));
    const CapReport lower = set(process, cap("1GiB"));
    REQUIRE(lower.gpus.size() == 1);
    CHECK(lower.gpus[0].before == 2 * GiB);
    CHECK(lower.gpus[0].now == 1 * GiB);
    CHECK(lower.gpus[0].held == kContext);
    CHECK(process("total") == std::to_string(1 * GiB));
    CHECK(number(process("fill")) <= 1 * GiB);
    set(process, cap("4GiB"));
    CHECK(process("total") == std::to_string(4 * GiB));
    const std::uint64_t held = number(process("fill"));
    CHECK(held > 3 * GiB);
    CHECK(held <= 4 * GiB);
    CHECK(status(process).gpus.at(0).live_cap == policy::parse_size("4GiB").value());
    const CapReport back = set(process, reset());
    CHECK(back.gpus.at(0).before == 4 * GiB);
    CHECK(back.gpus.at(0).now == 2 * GiB);
    CHECK(!status(process).gpus.at(0).live_cap);
    CHECK(process("take") == "refused");
    CHECK(process("drop") == "ok");
    CHECK(number(process("fill")) <= 2 * GiB);
}

TEST_CASE("caps take effect in the order in which they are asked for, NVML or not") {
    // NVML takes 9 ms to start, and nothing has asked it yet.
    Capped process({.environment = {{"CURB_SIM_LATENCY", "h100"}}, .socket = false});
    REQUIRE(within(20s, [&] { return !process.socket().empty(); }));
    const Raw first(process.socket()), second(process.socket()), third(process.socket());
    const auto asks = [](const Raw &client, const char *size) {
        client.send(std::string(R"({"curb":1,"ask":"cap","gpu":"nvml:0","cap":")") + size + "\"}\n");
        client.no_more();
    };
    asks(first, "2GiB");
    asks(second, "3GiB");
    asks(third, "4GiB");
    CHECK_THAT(first.answer(), contains("cap"));
    CHECK_THAT(second.answer(), contains("cap"));
    CHECK_THAT(third.answer(), contains("cap"));
    CHECK(status(process).gpus.at(0).cap == 4 * GiB);
}

TEST_CASE("a live cap is refused for an unknown GPU, and under an invalid policy until an edit fixes it") {
    Capped process(how({{"CURB_CAP", "1GiB"}}));
    CHECK_THAT(refusal(ask(process.pid(), cap("2GiB", "cuda:1"), 10s)),
               contains("process " + process.id() + ": gpu key \"cuda:1\" names none") && contains("cuda:0 = ") &&
                   contains("GPU-"));
    CHECK_THAT(refusal(ask(process.pid(), cap("2GiB", "nvml:7"), 10s)), contains("nvml:0"));
    CHECK_THAT(refusal(ask(process.pid(), cap("2GiB", "gpu0"), 10s)), contains("did you mean \"cuda:0\"?"));
    CHECK(status(process).gpus.at(0).cap == 1 * GiB);
    Capped unusable(under("{"));
    CHECK_THAT(refusal(ask(unusable.pid(), cap("2GiB"), 10s)), contains("everything is refused whatever the cap"));
    CHECK(!status(unusable).policy.error.empty());
    CHECK(unusable("take") == "refused");
    unusable.edit(capped_at("2GiB"));
    comes_into_force(unusable, 2 * GiB);
    CHECK(unusable("take") == "ok");
}

TEST_CASE("no live cap exceeds the machine's ceiling, and the answer says so") {
    const Ceiling ceiling(R"({ "version": 1, "gpu": { "*": { "cap": "2GiB" } } })");
    if (!can_mount()) return;
    Capped::How with = under(capped_at("1GiB"));
    with.prepare = ceiling.prepare();
    Capped process(with);
    CHECK(status(process).policy.ceiling == "/etc/curb/policy.json");
    CHECK(!status(process).gpus.at(0).ceiling);
    const CapReport report = set(process, cap("8GiB"));
    CHECK(report.gpus.at(0).now == 2 * GiB);
    CHECK(report.gpus.at(0).ceiling);
    CHECK(status(process).gpus.at(0).ceiling);
    CHECK(number(process("fill")) <= 2 * GiB);
    const Outcome typed = process.curb({"cap", process.id(), "9GiB"});
    CHECK_THAT(typed.out, contains("cuda:0 cap 2 GiB, as before; 9GiB was asked for, and the machine's ceiling"));
    CHECK(typed.status == 1);
    CHECK(process.curb({"cap", process.id(), "9GiB", "--json"}).status == 1);
    CHECK(process.curb({"cap", process.id(), "1GiB"}).status == 0);
    // While other users may write the ceiling, no edit comes into force.
    set(process, reset());
    fs::permissions(ceiling.file(), fs::perms(0666));
    process.edit(capped_at("1500MiB"));
    is_refused(process, "/etc/curb/policy.json");
    CHECK(status(process).gpus.at(0).cap == 1 * GiB);
    fs::permissions(ceiling.file(), fs::perms(0644));
    comes_into_force(process, 1500 * MiB);
    CHECK(count(process.log(), "is writable by others than root") == 1);
}

TEST_CASE("the machine's ceiling stays in force when its file is gone, and the next one holds") {
    const Ceiling ceiling(capped_at("2GiB"));
    if (!can_mount()) return;
    Capped::How with = under(capped_at("4GiB"));
    with.prepare = ceiling.prepare();
    Capped process(with);
    const auto stays_at_2_gib = [&](const char *cap_of_user) {
        fs::remove(ceiling.file());
        process.edit(capped_at(cap_of_user));
        CHECK(logs(process, '"' + std::string(cap_of_user) + '"'));
        CHECK(status(process).gpus.at(0).cap == 2 * GiB);
    };
    stays_at_2_gib("5GiB");
    // A version that cannot be trusted goes too, and comes back with the same text.
    const fs::path next = ceiling.file().parent_path() / "next";
    const auto put = [&](int mode) {
        std::ofstream(next) << capped_at("1GiB");
        fs::permissions(next, fs::perms(mode));
        fs::rename(next, ceiling.file());
    };
    put(0666);
    is_refused(process, "is writable by others than root");
    stays_at_2_gib("6GiB");
    put(0644);
    comes_into_force(process, 1 * GiB);
}

TEST_CASE("a live cap stays in force across edits of the policy, and the edit holds once the cap is reset") {
    Capped process(under(capped_at("2GiB")));
    set(process, cap("1GiB"));
    process.edit(capped_at("3GiB"));
    CHECK(logs(process, "\"3GiB\""));
    CHECK(status(process).gpus.at(0).cap == 1 * GiB);
    CHECK(set(process, reset()).gpus.at(0).now == 3 * GiB);
}

TEST_CASE(
    "a live cap below what is held releases memory at once, and requests are refused until the process is under it") {
    Capped process(under(capped_at("4GiB")));
    CHECK(process("pools") == "ok");
    for (int i = 0; i < 4; ++i) CHECK(process("take") == "ok");
    const CapReport report = set(process, cap("1GiB"));
    CHECK(report.gpus.at(0).held == kContext + 448 * MiB + 256 * MiB);
    CHECK(within(5s, [&] { return number(process("held")) == kContext + 256 * MiB; }));
    REQUIRE(within(5s, [&] { return !status(process).releases.empty(); }));
    CHECK(status(process).releases.back().report.trigger == "cap lowered");
    CHECK(logs(process, "curb cap: cuda:0 cap 4 GiB -> 1 GiB, and 1.19 GiB is held"));
    set(process, cap("700MiB"));
    CHECK(process("take") == "refused");
    CHECK_THAT(process.log(), contains("To allow it: raise the cap: curb cap " + process.id() +
                                       " 1280MiB, or have the program free its caches: curb release " + process.id()));
    CHECK(process("drop") == "ok");
    CHECK(process("take") == "ok");
}

TEST_CASE("a raised cap lets a request that waits go on at once") {
    Capped process(under(capped_at("1GiB", R"(, "growth": { "wait": "50s" })")));
    set(process, cap("600MiB"));
    CHECK(process("ask") == "ok");
    CHECK(within(5s, [&] { return status(process).gpus.at(0).waited == 1; }));
    CHECK(process("asked") == "waits");
    set(process, cap("2GiB"));
    CHECK(within(5s, [&] { return process("asked") == "granted"; }));
}

TEST_CASE("curb reports every error of an invalid edit, and the last good policy stays in force") {
    Capped process(under(capped_at("2GiB")));
    process.write(R"({ "version": 1, "gpu": { "*": { "cap": "2Gib" } }, "gqu": {} })");
    is_refused(process, "\"gqu\"");
    CHECK_THAT(status(process).policy.error, contains("'2Gib' is not a size") && contains("; "));
    CHECK(status(process).gpus.at(0).cap == 2 * GiB);
    fs::remove(process.policy());
    process.write(capped_at("3GiB"));
    comes_into_force(process, 3 * GiB);
    CHECK(logs(process, "/gpu/*/cap: \"2GiB\" -> \"3GiB\""));
    process.write(R"({ "version": 1, "gpu": { "cuda:5": { "cap": "2GiB" } } })");
    CHECK(logs(process, "\"cuda:5\" names none"));
    CHECK(!status(process).gpus.at(0).cap);
}

TEST_CASE("the error of a policy is that of its present file, also where that is none to read") {
    Capped process(under(capped_at("2GiB")));
    const auto puts = [&](auto make) {
        fs::remove(process.policy());
        make(process.policy());
    };
    process.edit(R"({ "gqu": {} })");
    is_refused(process, "\"gqu\"");
    puts([](const fs::path &path) { REQUIRE(::mkfifo(path.c_str(), 0600) == 0); });
    is_refused(process, "not a regular file");
    CHECK_THAT(status(process).policy.error, !contains("gqu"));
    puts([](const fs::path &path) { REQUIRE(fs::create_directory(path)); });
    is_refused(process, "it is a directory");
    puts([&](const fs::path &) { process.write(R"({ "gqu": {} })"); });
    is_refused(process, "\"gqu\"");
    process.edit(capped_at("3GiB"));
    comes_into_force(process, 3 * GiB);
}

TEST_CASE("a full pipe as the log delays no edit, no live cap and no status") {
    Capped::How with = under(capped_at("2GiB"));
    with.prepare = [] {  // stderr is a pipe that is full
        int ends[2];
        if (::pipe2(ends, O_NONBLOCK) != 0) ::_exit(97);
        while (::write(ends[1], "x", 1) == 1) {
        }
        ::fcntl(ends[1], F_SETFL, 0);
        ::dup2(ends[1], 2);
    };
    Capped process(with);
    process.edit(capped_at("3GiB"));  // logged once it is in force
    CHECK(within(5s, [&] { return status(process).gpus.at(0).cap == 3 * GiB; }));
    CHECK(quickest([&] {
              CHECK(set(process, cap("1GiB")).gpus.at(0).now == 1 * GiB);
              CHECK(set(process, cap("2GiB")).gpus.at(0).now == 2 * GiB);
          }) < 100ms);
    CHECK(status(process).gpus.at(0).cap == 2 * GiB);
}

TEST_CASE("setting live caps again and again leaks no memory and disturbs no thread that reads them") {
    // malloc overwrites freed memory: a thread that still read it would see that.
    Capped process(how({{"CURB_CAP", "8GiB"}, {"CURB_SIM_GPUS", "8"}, {"MALLOC_PERTURB_", "165"}}));
    const auto set_many = [&](int times) {
        for (int i = 0; i < times; ++i) REQUIRE(set(process, cap(i % 2 == 0 ? "6GiB" : "7GiB")).gpus.size() == 8);
        const std::string status = contents("/proc/" + process.id() + "/status");
        return std::stoul(status.substr(status.find("RssAnon:") + 8));  // KiB
    };
    CHECK(process("work") == "ok");
    set_many(1'000);
    const auto before = set_many(500);
    const auto after = set_many(2'500);
    // In KiB: a leak of 1.5 KB for each cap would be more. AddressSanitizer keeps freed memory, to find later uses.
    CHECK((tested::has_sanitizer() || after < before + 500));
    CHECK(set(process, cap("7GiB")).gpus.at(0).now == 7 * GiB);
}

TEST_CASE("curb cap prints the cap in force, and what happens to memory above it") {
    Capped process(under(capped_at("8GiB")));
    const std::string pid = process.id();
    for (int i = 0; i < 8; ++i) CHECK(process("take") == "ok");
    const Outcome typed = process.curb({"cap", pid, "1GiB"});
    CHECK(typed.status == 0);
    CHECK(typed.err.empty());
    CHECK(typed.out ==
          "process " + pid +
              ": cuda:0 cap 8 GiB -> 1 GiB; 1.01 GiB is held: curb releases cached memory, and new requests "
              "wait or are refused until less is held\n");
    CHECK(process.curb({"cap", pid, "2GiB", "--gpu", "cuda:0"}).out ==
          "process " + pid + ": cuda:0 cap 1 GiB -> 2 GiB\n");
    CHECK_THAT(process.curb({"cap", pid, "4GiB"}).out,
               contains("cuda:0 cap 2 GiB, as before; the cap of 2GiB for a more specific key holds"));
    CHECK_THAT(process.curb({"cap", pid, "--reset", "--json"}).out,
               contains(R"("before":2147483648,"now":8589934592,"live_cap":null,"ceiling":false,"held":)"));
    CHECK(process.curb({"cap", pid, "1GiB", "--gpu", "cuda:3"}).status == 1);
    CHECK(process.curb({"cap", "2147483647", "1GiB"}).status == 1);
}
