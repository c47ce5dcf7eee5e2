// One simulated machine that several processes and curb share, programs on it that do as they are told
// (suspend_scenarios.cpp), and the driver's own books of them.
#pragma once

#include <signal.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <thread>

#include "cli.hpp"

using namespace std::chrono_literals;
using Environment = std::map<std::string, std::string>;

inline constexpr std::int64_t kMiB = 1 << 20;
inline constexpr std::int64_t kContext = 518, kLeft = 4;  // MiB

template <class Condition>
bool within(std::chrono::milliseconds deadline, Condition condition) {
    const auto until = std::chrono::steady_clock::now() + deadline;
    while (!condition()) {
        if (std::chrono::steady_clock::now() > until) return false;
        std::this_thread::sleep_for(2ms);
    }
    return true;
}

inline Environment with(Environment environment, const Environment &more) {
    for (const auto &[name, value] : more) environment[name] = value;
    return environment;
}

// One simulated machine, and a runtime directory.
class Machine {
  public:
    explicit Machine(Environment more = {}) : more_(std::move(more)) {
        fs::create_directory(dir_ / "runtime");
        fs::permissions(dir_ / "runtime", fs::perms::owner_all);
    }
    [[nodiscard]] Environment environment() const {
        return with({{"CURB_SIM_STATE", (dir_ / "state").string()},
                     {"LD_LIBRARY_PATH", CURB_SIM},
                     {"XDG_RUNTIME_DIR", (dir_ / "runtime").string()}},
                    more_);
    }
    [[nodiscard]] Outcome curb(Words words, const Environment &more = {}) const {
        return ::curb(std::move(words), with(environment(), more));
    }
    [[nodiscard]] fs::path folder() const { return dir_.path(); }

    [[nodiscard]] fs::path state_file() const { return dir_ / "state"; }

    // Bytes that a process holds of one device, by the books.
    [[nodiscard]] std::int64_t held_of(int device, pid_t pid) const {
        std::string books = text();
        for (int i = 0; i <= device; ++i) books.erase(0, books.find("\"processes\":[") + 13);
        books.erase(books.find(']'));
        const std::size_t at = books.find("{\"pid\":" + std::to_string(pid) + ",");
        return at == std::string::npos ? 0 : std::stoll(books.substr(books.find("\"bytes\":", at) + 8));
    }
    // MiB that a process holds of all devices, and its state, by the books; "" when it holds nothing.
    [[nodiscard]] std::int64_t held(pid_t pid) const {
        std::int64_t sum = 0;
        each(pid,
             [&](const std::string &entry) { sum += std::stoll(entry.substr(entry.find("\"bytes\":") + 8)) / kMiB; });
        return sum;
    }
    [[nodiscard]] std::string state(pid_t pid) const {
        std::string state;
        each(pid, [&](const std::string &entry) {
            const std::size_t at = entry.find("\"state\":\"") + 9;
            state = entry.substr(at, entry.find('"', at) - at);
        });
        return state;
    }
    [[nodiscard]] std::vector<fs::path> records(pid_t pid) const {
        std::vector<fs::path> found;
        for (const fs::path &folder : {dir_ / "runtime/curb", fs::path("/tmp/curb-" + std::to_string(::getuid()))}) {
            if (!fs::exists(folder)) continue;
            for (const auto &entry : fs::directory_iterator(folder)) {
                const std::string name = entry.path().filename();
                if (name.starts_with(std::to_string(pid) + "-") && name.ends_with(".suspended.json"))
                    found.push_back(entry.path());
            }
        }
        return found;
    }

  private:
    template <class Do>
    void each(pid_t pid, Do act) const {
        const std::string books = text(), label = "{\"pid\":" + std::to_string(pid) + ",";
        for (std::size_t at = 0; (at = books.find(label, at)) != std::string::npos; ++at)
            act(books.substr(at, books.find('}', at) - at));
    }
    [[nodiscard]] std::string text() const {
        const Outcome books = ::start({{CURB_BOOKS, (dir_ / "state").string()}, {}, {}, {}, {}});
        REQUIRE(books.status == 0);
        return books.out;
    }

    TempDir dir_;
    Environment more_;
};

// A process that runs beside the test, with its stdin and stdout.
class Running {
  public:
    Running(Words words, const Environment &environment, const std::function<void()> &prepare = {}, int err = 2) {
        int in[2], out[2];
        REQUIRE(::pipe2(in, O_CLOEXEC) == 0);
        REQUIRE(::pipe2(out, O_CLOEXEC) == 0);
        Words variables = environment_of(environment);
        const auto argv = pointers(words), envp = pointers(variables);
        pid_ = ::fork();
        if (pid_ == 0) {
            ::dup2(in[0], 0);
            ::dup2(out[1], 1);
            if (err != 2) ::dup2(err, 2);
            if (prepare) prepare();
            ::execve(argv.front(), argv.data(), envp.data());
            ::_exit(98);
        }
        ::close(in[0]);
        ::close(out[1]);
        in_ = in[1];
        out_ = out[0];
    }
    ~Running() {
        if (!ended_) {
            ::kill(pid_, SIGKILL);
            end();
        }
        ::close(in_);
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
    // The next line that it says; "": an empty one, or none came in time.
    std::string says(std::chrono::milliseconds patience = 20s) { return next_line(patience).value_or(""); }
    // All that it says before the next line that begins like this.
    std::string says_until(const std::string &beginning) {
        for (std::string said;;) {
            const auto line = next_line(20s);
            if (!line) FAIL("no line begins with '" << beginning << "' in:\n" << said);
            if (line->starts_with(beginning)) return said;
            said += *line + "\n";
        }
    }
    std::string answers(const std::string &line) {
        tell(line);
        return says();
    }
    // Its exit status, or 128 + signal.
    int end() {
        int status = 0;
        REQUIRE(::waitpid(pid_, &status, 0) == pid_);
        ended_ = true;
        return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
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

inline Environment under_curb() {
    return {{"LD_PRELOAD", std::string(*CURB_SANITIZER_RUNTIME ? CURB_SANITIZER_RUNTIME ":" : "") + CURB_LIBRARY},
            {"CURB_CAP", "40GiB"}};
}

// The program, ready.
class Program : public Running {
  public:
    explicit Program(const Machine &machine, const Environment &more = under_curb(),
                     const std::function<void()> &prepare = {})
        : Running({CURB_SCENARIOS, "does_as_it_is_told"}, with(machine.environment(), more), prepare) {
        REQUIRE(says() == "ready");
    }
};
