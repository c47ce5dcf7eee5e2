// A process under libcurb.so on the simulated driver, beside the test, that runs the test's commands, one a line
// (command_scenarios.cpp). It has a runtime directory of its own, or the test's.
#pragma once

#include <memory>

#include "control/client.hpp"
#include "start.hpp"

struct RuntimeFolder {
    std::unique_ptr<TempDir> own;
    fs::path path;
};

class Capped : private RuntimeFolder, public Running {
  public:
    struct How {
        Words command{tested::kScenarios, "runs_commands"};
        Environment environment{};
        std::function<void()> prepare{};  // in the child, before exec
        bool socket = true;               // wait until it answers on its control socket
        std::string policy{};             // written to job.json in the runtime directory; empty: no policy
    };

    Capped() : Capped(How()) {}
    explicit Capped(const How &how) : Capped(own_folder(), how) {}
    explicit Capped(const fs::path &runtime) : Capped(runtime, How()) {}
    Capped(const fs::path &runtime, const How &how) : Capped(RuntimeFolder{nullptr, runtime}, how) {}

    [[nodiscard]] const fs::path &folder() const { return path; }
    [[nodiscard]] fs::path policy() const { return path / "job.json"; }
    // Edits the policy: in place, or by renaming another file.
    void write(const std::string &text) const { std::ofstream(policy(), std::ios::trunc) << text; }
    void edit(const std::string &text) const {
        std::ofstream(path / "job.json.new") << text;
        fs::rename(path / "job.json.new", policy());
    }
    // Runs curb, which finds the process's socket.
    [[nodiscard]] Outcome curb(const Words &words) const {
        return start({joined({tested::kCurb}, words), {{"XDG_RUNTIME_DIR", path.string()}}});
    }

    // Sends it a line; returns its answer.
    std::string operator()(const std::string &what) { return answers(what); }

    [[nodiscard]] bool can_be_asked() const {
        return within(20s, [&] {
            const auto reply = curb::control::ask(pid(), curb::control::StatusRequest(), 1s);
            return std::holds_alternative<curb::control::Status>(reply);
        });
    }

    // Returns what it wrote to stderr.
    [[nodiscard]] std::string log() const { return contents(log_); }

    // Returns the path of its control socket; empty if it has none.
    [[nodiscard]] std::string socket() const {
        const std::string name = socket_of(path / "curb", *this);
        return name.empty() ? "" : (path / "curb" / name).string();
    }

  private:
    Capped(RuntimeFolder folder, const How &how) : Capped(std::move(folder), how, next_log()) {}
    Capped(RuntimeFolder folder, const How &how, const std::string &log)
        : RuntimeFolder(std::move(folder)),
          Running(how.command, environment(how), [&] { prepare(how, path / log); }),
          log_((path / log).string()) {
        REQUIRE(says() == "ready");
        if (how.socket) REQUIRE(can_be_asked());
    }
    static RuntimeFolder own_folder() {
        auto own = std::make_unique<TempDir>();
        const fs::path path = own->path();
        return {std::move(own), path};
    }
    static std::string next_log() {
        static int made = 0;
        return "log-" + std::to_string(::getpid()) + "-" + std::to_string(++made);
    }
    Environment environment(const How &how) const {
        Environment out = how.environment;
        out.emplace("XDG_RUNTIME_DIR", path.string());
        out.emplace("LD_PRELOAD", preloaded(tested::kLibrary));
        out.emplace("LD_LIBRARY_PATH", tested::kSim);
        if (how.policy.empty()) return out;
        write(how.policy);
        out.emplace("CURB_POLICY", policy().string());
        return out;
    }
    static void prepare(const How &how, const std::string &log) {
        ::dup2(::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666), 2);
        ::close_range(3, ~0U, 0);
        if (how.prepare) how.prepare();
    }

    std::string log_;
};
