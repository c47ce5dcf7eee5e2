// A process under libcurb.so on the simulated driver that runs beside the test, with a runtime directory of its own,
// and is told what to do line by line.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "control/client.hpp"
#include "temp_dir.hpp"

namespace fs = std::filesystem;
using namespace std::chrono_literals;

// Waits for `condition`, at most so long. The time is a deadline, not a pause.
template <class Condition>
bool within(std::chrono::milliseconds deadline, Condition condition) {
    const auto until = std::chrono::steady_clock::now() + deadline;
    while (!condition()) {
        if (std::chrono::steady_clock::now() > until) return false;
        std::this_thread::sleep_for(1ms);
    }
    return true;
}

class Capped {
  public:
    struct How {
        std::vector<std::string> command{CURB_SCENARIOS, "does_what_it_is_told"};
        std::map<std::string, std::string> environment{};
        std::function<void()> prepare{};  // in the child, before exec
        bool socket = true;               // wait until it can be asked
    };

    explicit Capped(const fs::path &runtime) : Capped(runtime, How()) {}
    Capped(const fs::path &runtime, How how) : runtime_(runtime) {
        int in[2], out[2];
        REQUIRE(::pipe2(in, O_CLOEXEC) == 0);
        REQUIRE(::pipe2(out, O_CLOEXEC) == 0);
        std::string preload = CURB_LIBRARY;
        if (*CURB_SANITIZER_RUNTIME) preload.insert(0, CURB_SANITIZER_RUNTIME ":");
        log_ = (runtime / ("log-" + std::to_string(::getpid()) + "-" + std::to_string(++count()))).string();
        pid_ = ::fork();
        if (pid_ == 0) {
            ::prctl(PR_SET_PDEATHSIG, SIGKILL);
            ::dup2(in[0], 0);
            ::dup2(out[1], 1);
            const int log = ::open(log_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
            ::dup2(log, 2);
            ::close_range(3, ~0U, 0);
            for (const char *name : {"CURB_POLICY", "CURB_CAP", "XDG_CONFIG_HOME"}) ::unsetenv(name);
            ::setenv("HOME", "/nonexistent", 1);
            ::setenv("XDG_RUNTIME_DIR", runtime.c_str(), 1);
            ::setenv("LD_PRELOAD", preload.c_str(), 1);
            ::setenv("LD_LIBRARY_PATH", CURB_SIM, 1);
            for (const auto &[name, value] : how.environment) ::setenv(name.c_str(), value.c_str(), 1);
            if (how.prepare) how.prepare();
            std::vector<char *> words;
            for (std::string &word : how.command) words.push_back(word.data());
            words.push_back(nullptr);
            ::execvp(words.front(), words.data());
            ::_exit(98);
        }
        ::close(in[0]);
        ::close(out[1]);
        to_ = in[1];
        from_ = out[0];
        REQUIRE(line() == "ready");
        if (how.socket) REQUIRE(can_be_asked());
    }
    ~Capped() {
        if (to_ >= 0) ::close(to_);
        ::close(from_);
        if (!waited_) {
            ::kill(pid_, SIGKILL);
            ::waitpid(pid_, nullptr, 0);
        }
    }
    Capped(const Capped &) = delete;
    Capped &operator=(const Capped &) = delete;

    [[nodiscard]] int pid() const { return pid_; }

    // Tells it something; its answer.
    std::string operator()(const std::string &what) {
        tell(what);
        return line();
    }
    void tell(const std::string &what) const {
        const std::string text = what + "\n";
        REQUIRE(::write(to_, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
    }
    // Its next line; empty: none came for a long time.
    [[nodiscard]] std::string line() const {
        std::string out;
        for (char c = 0;;) {
            pollfd readable{from_, POLLIN, 0};
            if (::poll(&readable, 1, 60'000) <= 0 || ::read(from_, &c, 1) <= 0) return {};
            if (c == '\n') return out;
            out += c;
        }
    }

    [[nodiscard]] bool can_be_asked() const {
        return within(20s, [&] {
            const auto reply = curb::control::ask(pid_, curb::control::StatusRequest(), 1s);
            return std::holds_alternative<curb::control::Status>(reply);
        });
    }

    // The normal end: its input ends. Exit status, or 128 + signal.
    int ends() {
        ::close(std::exchange(to_, -1));
        return wait();
    }
    int killed() {
        ::kill(pid_, SIGKILL);
        return wait();
    }
    int wait() {
        int status = 0;
        REQUIRE(::waitpid(pid_, &status, 0) == pid_);
        waited_ = true;
        return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    }

    // What it wrote to stderr.
    [[nodiscard]] std::string log() const {
        std::ifstream file(log_);
        return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    }

    // The socket's file, empty: there is none.
    [[nodiscard]] std::string socket() const {
        std::error_code error;
        for (const auto &entry : fs::directory_iterator(runtime_ / "curb", error))
            if (entry.path().filename().string().starts_with(std::to_string(pid_) + "-")) return entry.path().string();
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
    static int &count() {
        static int made = 0;
        return made;
    }

    fs::path runtime_;
    std::string log_;
    pid_t pid_ = -1;
    int to_ = -1;
    int from_ = -1;
    bool waited_ = false;
};
