// curb's own command is never under curb, whatever loads libcurb.so into it: it sees the machine as it is, is in no
// job, and waits for no memory. Each case runs with LD_PRELOAD in the shell, and with /etc/ld.so.preload and a ceiling.
#include "../naps/naps.hpp"
#include "capped.hpp"
#include "ceiling.hpp"

namespace {

// A machine whose commands have libcurb.so loaded, and its programs too.
class Preloaded {
  public:
    // `etc`: by /etc/ld.so.preload. `ceiling`: its policy, or that of the shell with LD_PRELOAD.
    Preloaded(bool etc, const std::string &ceiling) : ceiling_(ceiling), etc_(etc) {
        std::ofstream(ceiling_.etc() / "ld.so.preload") << tested::kLibrary << "\n";
        of_shell_ = under_policy(ceiling_.file().string());
    }
    [[nodiscard]] const Machine &machine() const { return machine_; }
    [[nodiscard]] std::function<void()> prepare() const { return etc_ ? ceiling_.prepare() : std::function<void()>(); }
    [[nodiscard]] Environment environment(const Environment &more = {}) const {
        return with(etc_ ? machine_.environment() : with(machine_.environment(), of_shell_), more);
    }
    Outcome curb(const Words &words) const {
        Outcome outcome =
            start({.words = joined({tested::kCurb}, words), .environment = environment(), .prepare = prepare()});
        INFO(outcome.out << outcome.err);
        REQUIRE(outcome.status == 0);
        return outcome;
    }

  private:
    const Machine machine_;
    const Ceiling ceiling_;
    const bool etc_;
    Environment of_shell_;
};

constexpr const char *kCap = R"("gpu": { "*": { "cap": "2GiB" } },
    "rules": [{ "match": { "exe": "scenarios" }, "gpu": { "*": { "cap": "20GiB" } } }])";
constexpr const char *kJob = R"("job": { "cap": "8GiB", "of": "user" })";

std::string policy(const char *members) {
    return R"({ "version": 1, "suspend": { "idle": "200ms", "light": false }, )" + std::string(members) + " }";
}

// Checks that `curb ps` shows the program, and neither itself nor this other process, and that it sees the whole GPU.
void shows(const Preloaded &at, const Program &program, pid_t other = 0) {
    const Outcome outcome = at.curb({"ps", "--json"});
    const Json all = Json::parse(outcome.out);
    CHECK(all["gpus"][0]["total"] >= std::int64_t{80} * 1024 * kMiB);
    std::vector<int> pids;
    for (const Json &process : all["processes"]) pids.push_back(process["pid"]);
    const auto has = [&](pid_t pid) { return std::find(pids.begin(), pids.end(), pid) != pids.end(); };
    CHECK(has(program.pid()));
    CHECK_FALSE((has(outcome.pid) || has(other)));
}

}  // namespace

TEST_CASE("a process comes back from its nap, whatever cap and job a command would have") {
    const bool etc = GENERATE(false, true);
    const char *limit = GENERATE(kCap, kJob);
    CAPTURE(etc, limit);
    const Preloaded at(etc, policy(limit));
    if (etc && !can_mount()) return;
    Holding program(at.machine(), 5376, at.environment(), at.prepare());
    const pid_t helper = helper_of_napping(at.machine(), program);
    for (const auto &thread : fs::directory_iterator("/proc/" + std::to_string(helper) + "/task"))
        CHECK_THAT(contents(thread.path() / "comm"), !contains("curb-"));  // none of libcurb.so's
    shows(at, program, helper);
    CHECK(program.answers("check") == "right");
    CHECK(program.finish() == 0);
}

TEST_CASE("each command does its work, and stands in no list itself") {
    const bool etc = GENERATE(false, true);
    const char *limit = GENERATE(kCap, kJob);
    CAPTURE(etc, limit);
    const Preloaded at(etc, R"({ "version": 1, )" + std::string(limit) + " }");
    if (etc && !can_mount()) return;
    Holding program(at.machine(), 5376, at.environment(), at.prepare());
    shows(at, program);
    const std::string pid = program.id();
    CHECK_THAT(at.curb({"suspend", pid}).out, contains("suspended " + pid));
    CHECK_THAT(at.curb({"resume", pid}).out, contains("resumed " + pid));
    CHECK(program.answers("check") == "right");
    CHECK(program.answers("pool") == "ok");
    CHECK_THAT(at.curb({"release", pid}).out, contains("256 MiB"));
    CHECK_THAT(at.curb({"cap", pid, "7GiB"}).out, contains("7 GiB"));
    CHECK_THAT(at.curb({"metrics"}).out, contains("pid=\"" + pid + "\""));
    CHECK_THAT(at.curb({"doctor", pid}).out, contains(pid));
    CHECK_THAT(at.curb({"doctor"}).out, contains("under curb answer"));
    at.curb({"run", "--quiet", "--cap", "1GiB", "--", tested::kScenarios, "runs_commands"});
    CHECK(at.machine().held(program.pid()) >= 5376);
    CHECK(program.finish() == 0);
}
