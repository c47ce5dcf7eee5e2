// One simulated machine for several processes and curb, with the driver's own books.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

#include "start.hpp"

using Json = nlohmann::json;

inline constexpr std::int64_t kMiB = 1 << 20;
inline constexpr std::int64_t kContext = 518, kLeft = 4;  // MiB

inline Environment with(Environment environment, const Environment &more) {
    for (const auto &[name, value] : more) environment[name] = value;
    return environment;
}

// One simulated machine, and a runtime directory.
class Machine {
  public:
    explicit Machine(Environment more = {}) : more_(std::move(more)) {
        fs::create_directory(runtime());
        fs::permissions(runtime(), fs::perms::owner_all);
    }
    [[nodiscard]] Environment environment() const {
        return with({{"CURB_SIM_STATE", state_file().string()},
                     {"LD_LIBRARY_PATH", tested::kSim},
                     {"XDG_RUNTIME_DIR", runtime().string()}},
                    more_);
    }
    [[nodiscard]] Begun begin_curb(const Words &words, const Environment &more = {}) const {
        return Begun({joined({tested::kCurb}, words), with(environment(), more)});
    }
    [[nodiscard]] Outcome curb(const Words &words, const Environment &more = {}) const {
        return begin_curb(words, more).end();
    }
    // The same for a command that must succeed.
    Outcome succeeds(const Words &words, const Environment &more = {}) const {
        Outcome outcome = curb(words, more);
        INFO(outcome.err);
        REQUIRE(outcome.status == 0);
        return outcome;
    }
    [[nodiscard]] fs::path folder() const { return dir_.path(); }
    [[nodiscard]] fs::path runtime() const { return dir_ / "runtime"; }
    [[nodiscard]] fs::path state_file() const { return dir_ / "state"; }
    // Writes a file into folder(). Returns its path.
    std::string write(const std::string &name, const std::string &text) const { return dir_.write(name, text); }

    // The driver's books of a process: the bytes that it holds of one device, the MiB of all devices, and its state.
    // Return 0 and "" if it holds nothing.
    [[nodiscard]] std::int64_t held_of(int device, pid_t pid) const {
        std::int64_t bytes = 0;
        each(pid, [&](int of, const Json &entry) { bytes += of == device ? entry["bytes"].get<std::int64_t>() : 0; });
        return bytes;
    }
    [[nodiscard]] std::int64_t held(pid_t pid) const {
        std::int64_t bytes = 0;
        each(pid, [&](int, const Json &entry) { bytes += entry["bytes"].get<std::int64_t>(); });
        return bytes / kMiB;
    }
    [[nodiscard]] std::string state(pid_t pid) const {
        std::string state;
        each(pid, [&](int, const Json &entry) { state = entry["state"]; });
        return state;
    }
    [[nodiscard]] std::vector<fs::path> records(pid_t pid) const {
        std::vector<fs::path> found;
        std::vector<fs::path> folders{runtime() / "curb"};
        const std::string in_tmp = "curb-" + std::to_string(::getuid());
        for (const auto &entry : fs::directory_iterator("/tmp")) {
            const std::string name = entry.path().filename();
            if (name == in_tmp || name.starts_with(in_tmp + ".")) folders.push_back(entry.path());  // or a spare
        }
        for (const fs::path &folder : folders) {
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
        const Outcome books = start({{tested::kBooks, state_file().string()}, {}});
        REQUIRE(books.status == 0);
        const Json machine = Json::parse(books.out);
        int number = 0;
        for (const Json &device : machine["devices"]) {
            for (const Json &entry : device["processes"])
                if (entry["pid"] == pid) act(number, entry);
            ++number;
        }
    }

    TempDir dir_;
    Environment more_;
};

// Returns how many requests of the process are in the order for memory of a GPU.
inline std::size_t requests_of(pid_t pid) {
    std::size_t count = 0;
    const auto count_in = [&](const fs::path &folder) {
        std::error_code gone;
        for (const auto &file : fs::directory_iterator(folder, gone)) {
            const std::string name = file.path().filename();
            count += name.starts_with("ticket-") && name.find("-" + std::to_string(pid) + "-") != std::string::npos;
        }
    };
    std::error_code none;
    for (const auto &folder : fs::directory_iterator("/run/curb/public", none)) count_in(folder.path());
    for (const auto &folder : fs::directory_iterator("/tmp"))
        if (folder.path().filename().string().starts_with("curb-public-")) count_in(folder.path());
    return count;
}

// Returns an environment that preloads libcurb.so and a harmless library of this name.
inline Environment with_library(const Machine &machine, const std::string &name) {
    const fs::path path = machine.folder() / name;
    fs::copy_file(tested::kSecondPreload, path, fs::copy_options::overwrite_existing);
    return {{"LD_PRELOAD", preloaded(tested::kLibrary + ":" + path.string())}};
}

// The programs of all users can take part in this machine.
inline void open_to_all(const Machine &machine) {
    std::ofstream(machine.state_file(), std::ios::app).flush();
    for (const fs::path &path : {machine.folder(), machine.state_file()}) fs::permissions(path, fs::perms::all);
}

// A driver that cannot move processes.
inline Environment older_driver() { return {{"LD_LIBRARY_PATH", tested::kSim + "/12.2:" + tested::kSim}}; }

inline Environment under_policy(const std::string &file) {
    return {{"LD_PRELOAD", preloaded(tested::kLibrary)}, {"CURB_POLICY", file}};
}
inline Environment under_curb() { return {{"LD_PRELOAD", preloaded(tested::kLibrary)}, {"CURB_CAP", "40GiB"}}; }

// A program that runs the test's commands (command_scenarios.cpp). Ready for the first one once constructed.
class Program : public Running {
  public:
    explicit Program(const Machine &machine, const Environment &more = under_curb(),
                     const std::function<void()> &prepare = {})
        : Running({tested::kScenarios, "runs_commands"}, with(machine.environment(), more), prepare) {
        REQUIRE(says() == "ready");
    }
};

// A Program that holds so many MiB, whose content "check" checks.
class Holding : public Program {
  public:
    Holding(const Machine &machine, int mib, const Environment &more = under_curb(),
            const std::function<void()> &prepare = {})
        : Program(machine, more, prepare) {
        REQUIRE(answers("hold " + std::to_string(mib)) == "held");
    }
};
