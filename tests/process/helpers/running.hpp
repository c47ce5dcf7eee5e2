// A process beside the test, which the test writes to and reads from line by line.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "tested.hpp"
#include "within.hpp"

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using Words = std::vector<std::string>;
using Environment = std::map<std::string, std::string>;

struct Outcome {
    pid_t pid = 0;
    int status = 0;  // exit status, or 128 + signal
    std::string out;
    std::string err;
};

// Returns the exit status of a waitpid status, or 128 + signal.
inline int exit_status(int status) { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }

inline std::string contents(const fs::path &file) {
    const std::ifstream in(file);
    std::ostringstream out;
    out << in.rdbuf();  // no exception, as by iterators, if it is in /proc and the process ends meanwhile
    return out.str();
}

inline std::size_t count(const std::string &text, const std::string &part) {
    std::size_t found = 0;
    for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++found;
    return found;
}

// For LD_PRELOAD: a sanitizer's runtime has to come first.
inline std::string preloaded(const std::string &libraries) {
    return tested::kSanitizerRuntime.empty() ? libraries : tested::kSanitizerRuntime + ":" + libraries;
}

// False if the programs of the build cannot be started as another user, which it reports as a skip.
inline bool can_become_another() {
    std::string why = ::geteuid() == 0 ? "" : "only root can be another user";
    struct stat folder {};
    for (fs::path path = tested::kBuild; path != path.root_path(); path = path.parent_path())
        if (::stat(path.c_str(), &folder) != 0 || (folder.st_mode & S_IXOTH) == 0)
            why = "others may not enter " + path.string();
    if (!why.empty()) skip(why);
    return why.empty();
}

// Returns a `prepare` that makes the child another user.
inline std::function<void()> becoming(uid_t user) {
    return [user] {
        if (::setgid(user) != 0 || ::setuid(user) != 0) ::_exit(97);
    };
}

// Returns `wanted` as NAME=VALUE, with a PATH and a HOME, and only the sanitizers' options of the test's environment.
inline Words environment_of(Environment wanted) {
    wanted.emplace("PATH", "/usr/bin:/bin");
    wanted.emplace("HOME", "/nonexistent");
    for (const char *name : {"ASAN_OPTIONS", "LSAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS"})
        if (const char *value = std::getenv(name)) wanted.emplace(name, value);
    Words out;
    for (const auto &[name, value] : wanted) out.emplace_back(name).append("=").append(value);
    return out;
}

inline std::vector<char *> pointers(Words &words) {
    std::vector<char *> out;
    for (std::string &word : words) out.push_back(word.data());
    out.push_back(nullptr);
    return out;
}

// Starts a program, which ends with the calling thread. `prepare` runs in the child, before exec. Returns the pid.
inline pid_t started(Words words, const Environment &environment, int in, int out, int err,
                     const std::function<void()> &prepare) {
    Words variables = environment_of(environment);
    const std::vector<char *> argv = pointers(words);
    std::vector<char *> envp = pointers(variables);
    const pid_t pid = ::fork();
    if (pid != 0) return pid;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::dup2(in, 0);
    ::dup2(out, 1);
    if (err != 2) ::dup2(err, 2);
    environ = envp.data();  // which `prepare` may change
    if (prepare) prepare();
    ::execvp(argv.front(), argv.data());
    ::_exit(98);
}

// A process that runs beside the test, with its stdin and stdout.
class Running {
  public:
    Running(Words words, const Environment &environment, const std::function<void()> &prepare = {}, int err = 2) {
        int in[2], out[2];
        REQUIRE(::pipe2(in, O_CLOEXEC) == 0);
        REQUIRE(::pipe2(out, O_CLOEXEC) == 0);
        pid_ = started(std::move(words), environment, in[0], out[1], err, prepare);
        ::close(in[0]);
        ::close(out[1]);
        in_ = in[1];
        out_ = out[0];
    }
    ~Running() {
        if (!ended_) killed();
        if (in_ >= 0) ::close(in_);
        ::close(out_);
    }
    Running(const Running &) = delete;
    Running &operator=(const Running &) = delete;

    [[nodiscard]] pid_t pid() const { return pid_; }
    [[nodiscard]] std::string id() const { return std::to_string(pid_); }
    void kill(int number) const { REQUIRE(::kill(pid_, number) == 0); }
    void tell(const std::string &line) const {
        const std::string whole = line + "\n";
        REQUIRE(::write(in_, whole.data(), whole.size()) == static_cast<ssize_t>(whole.size()));
    }
    // Returns its next line; empty if none came in time.
    std::string says(std::chrono::milliseconds patience = 60s) { return next_line(patience).value_or(""); }
    // Returns its lines before the next one that begins like this.
    std::string says_until(const std::string &beginning) {
        for (std::string said;;) {
            const auto line = next_line(60s);
            if (!line) FAIL("no line begins with '" << beginning << "' in:\n" << said);
            if (line->starts_with(beginning)) return said;
            said += *line + "\n";
        }
    }
    std::string answers(const std::string &line) {
        tell(line);
        return says();
    }
    // True if it has ended. end() still returns its exit status.
    [[nodiscard]] bool has_ended() const {
        siginfo_t end{};
        return ::waitid(P_PID, static_cast<id_t>(pid_), &end, WEXITED | WNOHANG | WNOWAIT) == 0 && end.si_pid != 0;
    }
    // Waits for its end. Returns its exit status, or 128 + signal.
    int end() {
        int status = 0;
        REQUIRE(::waitpid(pid_, &status, 0) == pid_);
        ended_ = true;
        return exit_status(status);
    }
    int killed() {
        kill(SIGKILL);
        return end();
    }
    int finish() {
        ::close(std::exchange(in_, -1));
        return end();
    }

  private:
    std::optional<std::string> next_line(std::chrono::milliseconds patience) {
        const auto until = std::chrono::steady_clock::now() + patience;
        while (said_.find('\n') == std::string::npos) {
            const auto left =
                std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
            pollfd pipe{out_, POLLIN, 0};
            if (left.count() <= 0 || ::poll(&pipe, 1, static_cast<int>(left.count())) <= 0) return {};
            char block[4096];
            const ssize_t got = ::read(out_, block, sizeof block);
            if (got <= 0) return {};
            said_.append(block, static_cast<std::size_t>(got));
        }
        const std::size_t end = said_.find('\n');
        const std::string line = said_.substr(0, end);
        said_.erase(0, end + 1);
        return line;
    }

    pid_t pid_ = 0;
    int in_ = -1, out_ = -1;
    bool ended_ = false;
    std::string said_;
};

// Returns the name of the process's control socket in this folder; empty if it has none there.
inline std::string socket_of(const fs::path &folder, const Running &process) {
    std::error_code error;
    for (const auto &entry : fs::directory_iterator(folder, error))
        if (std::string name = entry.path().filename(); name.starts_with(process.id() + "-") && name.ends_with(".sock"))
            return name;
    return {};
}
