// A command of curb: its name, help, options and function. main.cpp has a row for each.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "policy/values/result.hpp"
#include "policy/values/size.hpp"
#include "terminal/messages.hpp"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace curb::cli {

// Exit statuses, as of env, nohup and timeout. Those of programs are usually lower.
inline constexpr int kFailure = 125;  // curb could not do what was asked
inline constexpr int kNotExecutable = 126;
inline constexpr int kNotFound = 127;

// Prints the error and returns the status.
inline int failed(std::string_view why, int status = kFailure) {
    say::error(why);
    return status;
}

// Where the program's own command line begins.
enum class Rest {
    behind_dashes,  // at the first `--`
    at_first_word,  // there, or at the first word that is neither an option nor its value
};

// Declares the options and arguments of a command, and the variables that receive their values. `shape`: the name of
// the value in the help. Completion offers values by its beginning (values_of() in candidates.cpp): PID, FILE, KEY.
class Options {
  public:
    explicit Options(CLI::App &command) : command_(command) {}
    void flag(const char *name, bool &to, const char *line);
    void json(bool &to) { flag("-j,--json", to, "Machine-readable answer on standard output"); }
    void sim(bool &to) {
        flag("--sim", to, "Use the simulated machine of programs under curb run --sim (CURB_SIM_STATE)");
    }
    void option(const char *name, std::optional<std::string> &to, const char *shape, const char *line);
    void option(const char *name, std::string &to, const char *shape, const char *line);
    // An option whose value may be left out: it is `without` then.
    void option_or(const char *name, std::optional<std::string> &to, const char *shape, const char *without,
                   const char *line);
    // Not in the help: for libcurb.so, which starts the command for naps.
    void hidden_flag(const char *name, bool &to);
    void hidden_options(const char *name, std::vector<std::string> &to);
    // An option that may be given several times, once for each value.
    void options(const char *name, std::vector<std::string> &to, const char *shape, const char *line);

    // An argument that may be left out.
    void argument(const char *name, std::string &to, const char *line);
    void arguments(const char *name, std::vector<std::string> &to, const char *line);
    void pid(int &to, const char *line);
    void pids(std::vector<int> &to, const char *line);
    // An option with a pid, which may be given several times.
    void pid_options(const char *name, std::vector<int> &to, const char *line);
    // All words that are not options.
    void words(const char *name, std::vector<std::string> &to, const char *line);
    void rest(std::vector<std::string> &to, Rest where);

  private:
    friend class Commands;
    CLI::App &command_;
    std::vector<std::string> *rest_ = nullptr;
    Rest where_{};
};

// Reads the value of --bytes. Returns an error if it is not a size, or a percentage, which has no device.
policy::Result<policy::Bytes, std::string> bytes_in(const std::string &text);

struct Command {
    const char *group = "";  // the group that it belongs to: "policy"; empty: none
    const char *name;
    const char *line;        // one line for the help
    const char *usage = "";  // "curb NAME …", where CLI11 does not see all arguments; empty: it is derived
    const char *help;        // printed below the options: what is not obvious, exit statuses, examples
    // Declares the options and returns the call to make once they have values. null: it is a group.
    std::function<int()> (*takes)(Options &) = nullptr;
};

// Command::takes for a struct of options: Values::declare(Options &) declares them, kRun gets them.
template <class Values, int (*kRun)(const Values &)>
std::function<int()> takes(Options &options) {
    auto values = std::make_shared<Values>();
    values->declare(options);
    return [values] { return kRun(*values); };
}

// Runs the command that the words name and returns the exit status. `about`: the help of curb itself.
int dispatch(const std::vector<const Command *> &commands, const Command &about, const std::vector<std::string> &words);

}  // namespace curb::cli
