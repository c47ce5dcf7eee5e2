// Many naps at random moments: by idle time, for processes that wait, by command. In every state programs fork,
// programs and helpers are killed, and calls of the driver fail. rows.def has the number.
#include <signal.h>

#include <random>

#include "matrix.hpp"
#include "naps.hpp"

namespace {

// Each program holds 2 GiB, and two of them fit.
constexpr const char *kMemory = "6GiB", *kHold = "hold 2048";
constexpr int kPrograms = 3;

class Crowd {
  public:
    Crowd() {
        for (int i = 0; i < kPrograms; ++i) begin(i);
    }

    std::uint64_t naps() const { return naps_; }

    // Does one random thing to one random program.
    void disturb() {
        const int number = pick(kPrograms);
        Program &program = *programs_[number];
        switch (pick(10)) {
            case 0:
                run({"suspend", program.id()});
                std::this_thread::sleep_for(std::chrono::milliseconds(pick(100)));
                bring_back(program);
                break;
            case 1: run({"suspend", "--until-used", program.id()}); break;
            case 2: run({"resume", program.id()}); break;
            case 3:
                if (const pid_t helper = helper_of(program.pid())) ::kill(helper, SIGKILL);
                break;
            case 4: {
                const char *calls[] = {"cuCheckpointProcessLock",     "cuCheckpointProcessCheckpoint",
                                       "cuCheckpointProcessRestore",  "cuCheckpointProcessUnlock",
                                       "cuCheckpointProcessGetState", "cuDriverGetVersion"};
                machine_.write("fault", std::string(calls[pick(std::size(calls))]) + ":999");
                break;
            }
            case 5:
                if (pick(4) != 0) break;
                count(program);
                program.kill(SIGKILL);
                begin(number);
                break;
            default: break;
        }
    }

    // Checks each program that has finished its work, and lets it work again if `on`. True if none works any more.
    bool poll(bool on) {
        bool is_quiet = true;
        for (int i = 0; i < kPrograms; ++i) {
            if (!works_[i]) continue;
            const std::string answer = programs_[i]->says(5ms);
            if (answer.empty()) {
                is_quiet = false;
                continue;
            }
            CHECK(answer == "0 wrong");
            CHECK(programs_[i]->answers("check") == "right");
            count(*programs_[i]);
            works_[i] = on;
            if (on) work(i);
            is_quiet = is_quiet && !on;
        }
        return is_quiet;
    }

    // Each program accounts for the memory that the driver has given it, and ends without leaving a helper or a record.
    void check_books() {
        for (std::optional<Program> &program : programs_) {
            CHECK(within(60s, [&] {
                REQUIRE(program->answers("check") == "right");
                return machine_.held_of(0, program->pid()) == held_by_books(machine_, *program);
            }));
            CHECK(program->finish() == 0);
            CHECK(within(10s, [&] { return helper_of(program->pid()) == 0; }));
            CHECK(machine_.records(program->pid()).empty());
        }
    }

  private:
    int pick(int below) { return static_cast<int>(random_() % static_cast<unsigned>(below)); }
    std::size_t pick(std::size_t below) { return random_() % below; }

    void begin(int number) {
        programs_[number].emplace(machine_, environment_);
        counted_[number] = 0;
        REQUIRE(programs_[number]->answers(kHold) == "held");
        work(number);
    }
    void work(int number) {
        programs_[number]->tell("work and rest 2");
        works_[number] = true;
    }
    void run(const Words &words) { static_cast<void>(machine_.curb(words, environment_of_commands_)); }
    // Resumes it until it runs or naps: a fault must not leave it suspended.
    void bring_back(const Program &program) {
        CHECK(within(60s, [&] {
            run({"resume", "--wait", "10s", program.id()});
            const std::string state = machine_.state(program.pid());
            return state == "running" || nap_of(machine_, program)["out"] == true;
        }));
    }
    void count(const Program &program) {
        for (int i = 0; i < kPrograms; ++i) {
            if (programs_[i]->pid() != program.pid()) continue;
            const Json nap = nap_of(machine_, program);
            if (!nap.is_object()) return;
            const auto now = nap["count"].get<std::uint64_t>();
            naps_ += now - counted_[i];
            counted_[i] = now;
        }
    }

    const Machine machine_{Environment{{"CURB_SIM_MEMORY", kMemory}}};
    const Environment environment_of_commands_{{"CURB_SIM_FAULT_FILE", (machine_.folder() / "fault").string()}};
    const Environment environment_ = with(napping(machine_, R"("idle": "150ms", "when_others_wait": "30ms")",
                                                  R"("gpu": { "*": { "growth": { "wait": "120s" } } },)"),
                                          environment_of_commands_);
    std::mt19937 random_{std::random_device()()};
    std::optional<Program> programs_[kPrograms];
    bool works_[kPrograms] = {};
    std::uint64_t counted_[kPrograms] = {}, naps_ = 0;
};

}  // namespace

TEST_CASE("programs with eight threads and memory of every family go through naps unharmed", "[fork-child][patience]") {
    const std::uint64_t wanted = matrix::figure(matrix::Name::naps);
    Crowd crowd;
    const auto until = std::chrono::steady_clock::now() + (matrix::is_nightly() ? 220min : 4min);
    while (crowd.naps() < wanted && std::chrono::steady_clock::now() < until) {
        crowd.disturb();
        crowd.poll(true);
        std::this_thread::sleep_for(20ms);
    }
    CHECK(within(300s, [&] { return crowd.poll(false); }));
    crowd.check_books();
    CHECK(crowd.naps() >= wanted);
    matrix::report(matrix::Name::naps, crowd.naps());
}
