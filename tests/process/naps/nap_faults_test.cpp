// Naps while calls of the driver and of NVML fail, one after the other, in the process and in its helper.
#include <iostream>
#include <set>
#include <sstream>

#include "naps.hpp"

namespace {

// A program that naps by command, with the calls that it and its helpers make.
class Napper {
  public:
    // `suspend`: the policy's. Empty: no policy, and the driver alone moves the process.
    explicit Napper(const std::string &suspend)
        : program_(machine_, with(suspend.empty() ? under_curb() : napping(machine_, suspend),
                                  {{"CURB_SIM_FAULT_FILE", fault_.string()},
                                   {"CURB_SIM_CALLS", (machine_.folder() / "calls").string()}})) {
        REQUIRE(program_.answers("hold 48") == "held");
        REQUIRE(program_.answers("map 4") == "mapped");
        held_ = machine_.held(program_.pid());
    }

    // Lets it leave its GPUs, and return with its next call. True if it left.
    bool leave_and_return() {
        if (gave_up_) count_naps();  // it may have left since
        const std::uint64_t before = naps_;
        const Outcome command = machine_.curb({"suspend", "--until-used", "--timeout", "1m", program_.id()});
        has_left_ = has_left_ || command.status == 0;
        gave_up_ = contains("has not answered for").match(command.err);  // on an overloaded machine
        CHECK(program_.answers("check") == "right");
        count_naps();
        CHECK(naps_ <= before + 1);
        if (!gave_up_) CHECK(naps_ - before == (command.status == 0 ? 1 : 0));
        return naps_ != before;
    }

    // The same with a failure of this call of an export. False if it did not come to that call.
    bool leave_and_return_failing(const std::string &name, int call) {
        machine_.write("fault", name + ":" + std::to_string(call) + ":999");
        leave_and_return();
        const bool has_failed = !fs::exists(fault_);
        fs::remove(fault_);
        return has_failed;
    }

    // Returns the exports that are called on the way out and back, but for the program's own.
    std::set<std::string> calls_of_a_nap() {
        machine_.write("calls", "");
        REQUIRE(leave_and_return());
        std::istringstream lines(contents(machine_.folder() / "calls"));
        fs::remove(machine_.folder() / "calls");
        std::set<std::string> names;
        for (std::string name; std::getline(lines, name);) names.insert(name);
        for (const char *own : {"cuMemcpyDtoH_v2", "cuGetProcAddress_v2"}) names.erase(own);
        return names;
    }

    // It holds what it held, by its own books too, and nothing is left of the naps.
    void check_that_all_is_as_before() {
        CHECK(machine_.state(program_.pid()) == "running");
        CHECK(within(30s, [&] {
            return machine_.held(program_.pid()) == held_ &&
                   machine_.held_of(0, program_.pid()) == held_by_books(machine_, program_);
        }));
        CHECK(within(10s, [&] { return helper_of(program_.pid()) == 0; }));
        CHECK(machine_.records(program_.pid()).empty());
        CHECK(requests_of(program_.pid()) == 0);
    }

  private:
    // Waits until it is back, and counts its naps. A busy machine may make it answer late; before its first nap it has
    // none.
    void count_naps() {
        Json now;
        REQUIRE(within(60s, [&] {
            now = nap_of(machine_, program_);
            return now.is_object() ? now["out"] == false : !has_left_;
        }));
        naps_ = now.is_object() ? now["count"].get<std::uint64_t>() : 0;
    }

    const Machine machine_;
    const fs::path fault_ = machine_.folder() / "fault";
    Program program_;
    std::int64_t held_ = 0;
    std::uint64_t naps_ = 0;
    bool has_left_ = false, gave_up_ = false;
};

}  // namespace

TEST_CASE("whichever call of the driver or of NVML fails on the way out or back, the program goes on and naps again",
          "[patience]") {
    constexpr int kMost = 40;
    const std::string suspend = GENERATE("", R"("idle": "1h", "deep": "1ms")");  // the second: light, then deep
    CAPTURE(suspend);
    Napper napper(suspend);
    int failed = 0;
    for (const std::string &name : napper.calls_of_a_nap()) {
        int call = 1;
        while (call < kMost && napper.leave_and_return_failing(name, call)) {
            CAPTURE(name, call);
            napper.check_that_all_is_as_before();
            CHECK(napper.leave_and_return());
            ++call;
        }
        CHECK(call < kMost);
        failed += call - 1;
    }
    std::cout << "calls that failed during naps: " << failed << std::endl;
    CHECK(failed >= 30);
}
