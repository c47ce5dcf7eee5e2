// One run of a program under libcurb.so, on the simulated driver, as a user would start it: a folder of its own with
// the policy file in it, an environment, and what came out.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "catch.hpp"
#include "ceiling.hpp"
#include "running.hpp"

namespace fs = std::filesystem;

// A folder of its own for each case, with the policy file in it.
class Job {
  public:
    Job &policy(const std::string &text) { return with("CURB_POLICY", dir_.write("job.json", text)); }
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

    Outcome run(const std::string &scenario, const char *program = CURB_SCENARIOS) {
        return run_command({program, scenario});
    }
    Outcome run_command(const std::vector<std::string> &command) {
        environment_.try_emplace("LD_PRELOAD", CURB_LIBRARY);
        // A sanitizer's runtime has to come first.
        if (*CURB_SANITIZER_RUNTIME) environment_["LD_PRELOAD"].insert(0, CURB_SANITIZER_RUNTIME ":");
        environment_.try_emplace("LD_LIBRARY_PATH", CURB_SIM);
        const fs::path out = dir_ / "stdout", err = dir_ / "stderr";
        const pid_t child = fork();
        if (child == 0) {
            if (!freopen(out.c_str(), "w", stdout) || !freopen(err.c_str(), "w", stderr)) _exit(99);
            for (const char *name : {"CURB_POLICY", "CURB_CAP", "XDG_CONFIG_HOME"}) unsetenv(name);
            setenv("HOME", folder().c_str(), 1);
            setenv("XDG_RUNTIME_DIR", folder().c_str(), 1);
            if (in_its_folder_ && chdir(folder().c_str()) != 0) _exit(97);
            close_range(3, ~0U, 0);  // what this test inherited is not the scenario's
            alarm(seconds_);
            if (ceiling_ && !ceiling_->put_in_place()) _exit(96);
            for (const auto &[name, value] : environment_) setenv(name.c_str(), value.c_str(), 1);
            std::vector<char *> words;
            for (const std::string &word : command) words.push_back(const_cast<char *>(word.c_str()));
            words.push_back(nullptr);
            execvp(words.front(), words.data());
            _exit(98);
        }
        int status = 0;
        waitpid(child, &status, 0);
        const auto text = [](const fs::path &file) {
            std::stringstream all;
            all << std::ifstream(file).rdbuf();
            return all.str();
        };
        return {child, exit_status(status), text(out), text(err)};
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

inline std::size_t lines(const std::string &text) {
    return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}
