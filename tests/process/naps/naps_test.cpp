// Many naps at random moments: by idle time, for processes that wait, by command. In every state programs fork,
// programs, helpers and commands are killed, and calls of the driver fail. rows.def has the number.
#include <signal.h>

#include <random>

#include "matrix.hpp"
#include "naps.hpp"

namespace {

// Each program holds 2 GiB, and two of them fit.
constexpr const char *kMemory = "7GiB", *kHold = "hold 2048";
constexpr int kCrowds = 4, kPrograms = 3;

struct Member {
    std::optional<Program> program;
    std::optional<Running> command;  // `curb suspend` or `curb resume`, at work on it
    bool needs_resume = false;       // since `curb suspend`
    bool resumes = false;            // the command is `curb resume`
    const char *pending = nullptr;   // the command that it has not answered yet
    std::uint64_t counted = 0;       // of its naps

    void tell(const char *what) {
        pending = what;
        program->tell(what);
    }
};

// A machine of its own with three programs.
class Crowd {
  public:
    Crowd() {
        for (Member &member : members_) begin(member);
    }

    std::uint64_t naps() const { return naps_; }

    // Does one random thing to one random program.
    void disturb() {
        Member &member = members_[pick(kPrograms)];
        const std::string pid = member.program->id();
        switch (pick(10)) {
            case 0: member.needs_resume = run(member, {"suspend", pid}) || member.needs_resume; break;
            case 1: run(member, {"suspend", "--until-used", pid}); break;
            case 2: run(member, {"resume", pid}); break;
            case 3:
                if (const pid_t helper = helper_of(member.program->pid())) ::kill(helper, SIGKILL);
                break;
            case 4: {
                const char *calls[] = {"cuCheckpointProcessLock",     "cuCheckpointProcessCheckpoint",
                                       "cuCheckpointProcessRestore",  "cuCheckpointProcessUnlock",
                                       "cuCheckpointProcessGetState", "cuDriverGetVersion"};
                machine_.write("fault", std::string(calls[pick(std::size(calls))]) + ":1:999");
                break;
            }
            case 5:
                if (pick(4) != 0) break;
                count(member);
                member.program->kill(SIGKILL);
                begin(member);
                break;
            case 6: member.command.reset(); break;  // kills it
            default: break;
        }
    }

    // Checks each program that has finished its work, and lets it work again if `on`. Resumes the suspended ones. True
    // if none works any more.
    bool tend(bool on) {
        bool is_quiet = true;
        for (Member &member : members_) {
            if (!member.command || member.command->has_ended()) resume(member);
            if (member.pending) read(member, on);
            is_quiet = is_quiet && !member.pending && !member.command;
        }
        return is_quiet;
    }

    // Each program accounts for the memory that the driver has given it, and ends without leaving a helper or a record.
    void check_books() {
        for (Member &member : members_) {
            Program &program = *member.program;
            CHECK(within(60s, [&] {
                REQUIRE(program.answers("check") == "right");
                return machine_.held_of(0, program.pid()) == held_by_books(machine_, program);
            }));
            CHECK(program.finish() == 0);
            CHECK(within(10s, [&] { return helper_of(program.pid()) == 0; }));
            CHECK(machine_.records(program.pid()).empty());
        }
    }

  private:
    std::size_t pick(std::size_t below) { return random_() % below; }

    void begin(Member &member) {
        member.command.reset();
        member.program.emplace(machine_, environment_);
        REQUIRE(member.program->answers("map 32") == "mapped");
        member.needs_resume = false;
        member.counted = 0;
        member.tell(kHold);
    }
    // False if another command is at work on the program.
    bool run(Member &member, const Words &words) {
        if (member.command) return false;
        member.resumes = words.front() == "resume";
        member.command.emplace(joined({tested::kCurb}, words), with(machine_.environment(), environment_of_commands_),
                               [] { ::dup2(::open("/dev/null", O_WRONLY), STDERR_FILENO); });
        return true;
    }
    // Resumes a suspended program again and again until that succeeds: a fault may prevent it.
    void resume(Member &member) {
        const bool has_succeeded = member.command && member.command->end() == 0;
        member.command.reset();
        if (!member.needs_resume) return;
        const bool is_back = member.resumes && has_succeeded;
        // Of a process of which curb alone has moved its part, the driver knows nothing.
        member.needs_resume = !is_back && (machine_.state(member.program->pid()) != "running" ||
                                           nap_of(machine_, *member.program)["stays_out"] == true);
        if (member.needs_resume) run(member, {"resume", "--wait", "10s", member.program->id()});
    }
    void read(Member &member, bool on) {
        const std::string answer = member.program->says(2ms);
        if (answer.empty()) return;
        const std::string command = std::exchange(member.pending, nullptr);
        CAPTURE(command);
        CHECK(answer == (command == kHold ? "held" : command == "check" ? "right" : "0 wrong"));
        if (command == kWork) member.tell("check");
        if (command == "check") count(member);
        if (!member.pending && on) member.tell(kWork);
    }
    void count(Member &member) {
        const Json nap = nap_of(machine_, *member.program);
        if (!nap.is_object()) return;
        naps_ += nap["count"].get<std::uint64_t>() - member.counted;
        member.counted = nap["count"];
    }

    static constexpr const char *kWork = "work and rest 2";
    const Machine machine_{Environment{{"CURB_SIM_MEMORY", kMemory}}};
    const Environment environment_of_commands_{{"CURB_SIM_FAULT_FILE", (machine_.folder() / "fault").string()}};
    const Environment environment_ =
        with(napping(machine_, R"("idle": "150ms", "when_others_wait": "30ms", "deep": "100ms")",
                     R"("gpu": { "*": { "growth": { "wait": "120s" } } },)"),
             environment_of_commands_);
    std::mt19937 random_{std::random_device()()};
    Member members_[kPrograms];
    std::uint64_t naps_ = 0;
};

}  // namespace

TEST_CASE("programs with eight threads and memory of every family go through naps unharmed", "[fork-child][patience]") {
    const std::uint64_t wanted = matrix::figure(matrix::Name::naps);
    Crowd crowds[kCrowds];
    const auto naps = [&] {
        std::uint64_t sum = 0;
        for (const Crowd &crowd : crowds) sum += crowd.naps();
        return sum;
    };
    const auto until = std::chrono::steady_clock::now() + (matrix::is_nightly() ? 220min : 4min);
    while (naps() < wanted && std::chrono::steady_clock::now() < until) {
        for (Crowd &crowd : crowds) {
            crowd.disturb();
            crowd.tend(true);
        }
        std::this_thread::sleep_for(20ms);
    }
    CHECK(within(300s, [&] {
        bool is_quiet = true;
        for (Crowd &crowd : crowds) is_quiet = crowd.tend(false) && is_quiet;
        return is_quiet;
    }));
    for (Crowd &crowd : crowds) crowd.check_books();
    CHECK(naps() >= wanted);
    matrix::report(matrix::Name::naps, naps());
}
