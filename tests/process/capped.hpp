// A process under libcurb.so on the simulated driver that runs beside the test, with a runtime directory of its own,
// and is told what to do line by line.
#pragma once

#include "control/client.hpp"
#include "running.hpp"
#include "temp_dir.hpp"

class Capped : public Running {
  public:
    struct How {
        Words command{CURB_SCENARIOS, "does_what_it_is_told"};
        Environment environment{};
        std::function<void()> prepare{};  // in the child, before exec
        bool socket = true;               // wait until it can be asked
    };

    explicit Capped(const fs::path &runtime) : Capped(runtime, How()) {}
    Capped(const fs::path &runtime, const How &how) : Capped(runtime, how, next_log(runtime)) {}

    // Tells it something; its answer.
    std::string operator()(const std::string &what) { return answers(what); }

    [[nodiscard]] bool can_be_asked() const {
        return within(20s, [&] {
            const auto reply = curb::control::ask(pid(), curb::control::StatusRequest(), 1s);
            return std::holds_alternative<curb::control::Status>(reply);
        });
    }

    // What it wrote to stderr.
    [[nodiscard]] std::string log() const { return contents(log_); }

    // The socket's file, empty: there is none.
    [[nodiscard]] std::string socket() const {
        std::error_code error;
        for (const auto &entry : fs::directory_iterator(runtime_ / "curb", error))
            if (entry.path().filename().string().starts_with(id() + "-")) return entry.path().string();
        return {};
    }

    // How many clients are connected to it, by what the kernel says. (The name is the one that the socket was bound
    // to.)
    [[nodiscard]] std::size_t clients() const {
        std::ifstream sockets("/proc/net/unix");
        std::size_t found = 0;
        for (std::string one; std::getline(sockets, one);) found += one.find(socket() + ".new") != std::string::npos;
        return found - 1;  // the listening one
    }

  private:
    Capped(const fs::path &runtime, const How &how, const std::string &log)
        : Running(how.command, environment(runtime, how), [&] { prepare(how, log); }), runtime_(runtime), log_(log) {
        REQUIRE(says() == "ready");
        if (how.socket) REQUIRE(can_be_asked());
    }
    static std::string next_log(const fs::path &runtime) {
        static int made = 0;
        return (runtime / ("log-" + std::to_string(::getpid()) + "-" + std::to_string(++made))).string();
    }
    static Environment environment(const fs::path &runtime, const How &how) {
        Environment out = how.environment;
        out.emplace("XDG_RUNTIME_DIR", runtime.string());
        out.emplace("LD_PRELOAD", preloaded(CURB_LIBRARY));
        out.emplace("LD_LIBRARY_PATH", CURB_SIM);
        return out;
    }
    static void prepare(const How &how, const std::string &log) {
        ::dup2(::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666), 2);
        ::close_range(3, ~0U, 0);
        if (how.prepare) how.prepare();
    }

    fs::path runtime_;
    std::string log_;
};
