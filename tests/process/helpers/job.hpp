// One run of a program under libcurb.so on the simulated driver: its folder with the policy file, its environment, and
// its output.
#pragma once

#include "ceiling.hpp"
#include "start.hpp"

class Job {
  public:
    Job &policy(const std::string &text) { return with("CURB_POLICY", dir_.write("job.json", text)); }
    // Sets a policy with these members, and a log at level info in log(), whose path the program has as LOG.
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
    Job &with(const Environment &more) {
        for (const auto &[name, value] : more) with(name, value);
        return *this;
    }

    // Sets the time after which SIGALRM ends it; 60 s by default.
    Job &for_at_most(unsigned seconds) {
        seconds_ = seconds;
        return *this;
    }
    Job &in_its_folder() {
        in_its_folder_ = true;
        return *this;
    }

    // Sets the machine's ceiling for this run. It must outlive the job.
    Job &ceiling(const Ceiling &ceiling) {
        ceiling_ = &ceiling;
        return *this;
    }
    // On a machine whose GPU shares the host's memory. Needs can_mount().
    Job &unified() {
        meminfo_ = dir_.write("meminfo", "");
        return with("CURB_SIM_UNIFIED", meminfo_);
    }
    [[nodiscard]] const fs::path &folder() const { return dir_.path(); }
    [[nodiscard]] fs::path log() const { return folder() / "curb.log"; }

    Outcome run(const std::string &scenario, const std::string &program = tested::kScenarios) {
        return begin(scenario, program).end();
    }
    Outcome run_command(const Words &command) { return begin_command(command).end(); }
    // Starts the program. The job must outlive the result.
    Begun begin(const std::string &scenario, const std::string &program = tested::kScenarios) {
        return begin_command({program, scenario});
    }
    Begun begin_command(const Words &command) {
        Environment environment = environment_;
        environment.emplace("HOME", folder().string());
        environment.emplace("XDG_RUNTIME_DIR", folder().string());
        environment.emplace("LD_LIBRARY_PATH", tested::kSim);
        std::string &preload = environment.emplace("LD_PRELOAD", tested::kLibrary).first->second;
        preload = preloaded(preload);
        return Begun({.words = command,
                      .environment = environment,
                      .input = {},
                      .directory = in_its_folder_ ? folder().string() : "",
                      .prepare =
                          [this] {
                              close_range(3, ~0U, 0);  // the scenario must not inherit the test's descriptors
                              alarm(seconds_);
                              if (ceiling_ && !ceiling_->put_in_place()) _exit(96);
                              if (!meminfo_.empty() && !mount_over(meminfo_, "/proc/meminfo")) _exit(96);
                          },
                      .patience = std::chrono::seconds(seconds_ + 30)});
    }

  private:
    TempDir dir_;
    const Ceiling *ceiling_ = nullptr;  // nullptr: the machine's own
    std::string meminfo_;               // empty: the machine's own
    Environment environment_;
    bool in_its_folder_ = false;
    unsigned seconds_ = 60;
};

// Returns the outcome.
inline Outcome succeeds(Outcome outcome) {
    INFO(outcome.err);
    CHECK(outcome.status == 0);
    CHECK(outcome.out.empty());  // curb prints nothing on stdout
    return outcome;
}
