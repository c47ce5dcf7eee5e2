// One run of a program under libcurb.so on the simulated driver: its folder with the policy file, its environment, and
// its output.
#pragma once

#include "ceiling.hpp"
#include "start.hpp"

class Job {
  public:
    Job &policy(const std::string &text) { return with("CURB_POLICY", dir_.write("job.json", text)); }
    // A policy with these members, and a log at level info in log(), which the program finds as LOG.
    Job &logged(const std::string &members = "") {
        return policy(R"({ "version": 1, "log": { "level": "info", "file": ")" + log().string() + R"(" })" +
                      (members.empty() ? "" : ", ") + members + " }")
            .with("LOG", log().string());
    }
    Job &cap(const std::string &size) { return with("CURB_CAP", size); }
    Job &with(const std::string &name, const std::string &value) {
        environment_[name] = value;
        return *this;
    }

    // How long it may run; 60 s unless told.
    Job &for_at_most(unsigned seconds) {
        seconds_ = seconds;
        return *this;
    }
    Job &in_its_folder() {
        in_its_folder_ = true;
        return *this;
    }

    // The machine's ceiling, as this run sees it. Lives longer than the job.
    Job &ceiling(const Ceiling &ceiling) {
        ceiling_ = &ceiling;
        return *this;
    }
    [[nodiscard]] const fs::path &folder() const { return dir_.path(); }
    [[nodiscard]] fs::path log() const { return folder() / "curb.log"; }

    Outcome run(const std::string &scenario, const char *program = CURB_SCENARIOS) {
        return begin(scenario, program).end();
    }
    Outcome run_command(const Words &command) { return begin_command(command).end(); }
    // The job lives longer than what it began.
    Begun begin(const std::string &scenario, const char *program = CURB_SCENARIOS) {
        return begin_command({program, scenario});
    }
    Begun begin_command(const Words &command) {
        Environment environment = environment_;
        environment.emplace("HOME", folder().string());
        environment.emplace("XDG_RUNTIME_DIR", folder().string());
        environment.emplace("LD_LIBRARY_PATH", CURB_SIM);
        std::string &preload = environment.emplace("LD_PRELOAD", CURB_LIBRARY).first->second;
        preload = preloaded(preload);
        return Begun({.words = command,
                      .environment = environment,
                      .input = {},
                      .directory = in_its_folder_ ? folder().string() : "",
                      .prepare =
                          [this] {
                              close_range(3, ~0U, 0);  // what this test inherited is not the scenario's
                              alarm(seconds_);
                              if (ceiling_ && !ceiling_->put_in_place()) _exit(96);
                          },
                      .patience = std::chrono::seconds(seconds_ + 30)});
    }

  private:
    TempDir dir_;
    const Ceiling *ceiling_ = nullptr;  // the machine's own
    Environment environment_;
    bool in_its_folder_ = false;
    unsigned seconds_ = 60;
};

inline void succeeds(const Outcome &outcome) {
    INFO(outcome.err);
    CHECK(outcome.status == 0);
    CHECK(outcome.out.empty());  // nothing on stdout, ever
}
