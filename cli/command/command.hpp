// A command of curb: its name, its help, what it takes, what it does. main.cpp has a row for each.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "terminal.hpp"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace curb::cli {

// Exit statuses. The first three are those of env, nohup and timeout: a program's own are below them.
inline constexpr int kFailure = 125;  // curb could not do what was asked
inline constexpr int kNotExecutable = 126;
inline constexpr int kNotFound = 127;

// Prints why, and returns the status.
inline int failed(std::string_view why, int status = kFailure) {
    complain(why);
    return status;
}

// Where the command line of another program begins behind the words of a command of curb.
enum class Rest {
    behind_dashes,  // at the first `--`
    at_first_word,  // there, or at the first word that is neither an option nor its value
};

// The options and arguments of a command. Each call declares one and names the variable that takes its value. `shape`
// is the name of the value in the help; completion reads it: PID, FILE, TRACE, KEY, NAME.
class Options {
  public:
    explicit Options(CLI::App &command) : command_(command) {}
    void flag(const char *name, bool &to, const char *line);
    void json(bool &to) { flag("--json", to, "Machine-readable answer on standard output"); }
    void option(const char *name, std::optional<std::string> &to, const char *shape, const char *line);
    void option(const char *name, std::string &to, const char *shape, const char *line);
    // Between libcurb.so and the command: not in the help.
    void hidden_flag(const char *name, bool &to);
    void hidden_option(const char *name, std::string &to);
    // Once for each value.
    void options(const char *name, std::vector<std::string> &to, const char *shape, const char *line);

    enum class Need { optional, required };
    void argument(const char *name, std::string &to, const char *line, Need need = Need::required);
    void argument(const char *name, std::optional<std::string> &to, const char *line);
    void arguments(const char *name, std::vector<std::string> &to, const char *line);
    void pid(int &to, const char *line, Need need = Need::required);
    void pids(std::vector<int> &to, const char *line);
    // An option whose value is a pid, once for each.
    void pid_options(const char *name, std::vector<int> &to, const char *line);
    // As many words as there are.
    void words(const char *name, std::vector<std::string> &to, const char *line);
    void rest(std::vector<std::string> &to, Rest where);

  private:
    friend class Commands;
    CLI::App &command_;
    std::vector<std::string> *rest_ = nullptr;
    Rest where_{};
};

struct Command {
    const char *group = "";  // the command whose command it is: "policy"
    const char *name;
    const char *line;  // ends in ": curb NAME …" where the usage cannot be derived
    const char *help;  // below the options: exit status, what is not obvious, examples
    // Declares the options and returns the call to make once they have values. null: the command has commands.
    std::function<int()> (*takes)(Options &) = nullptr;
};

// Command::takes of a command whose options are the members of `Values`; Values::declare(Options &) declares them.
template <class Values, int (*kRun)(const Values &)>
std::function<int()> takes(Options &options) {
    auto values = std::make_shared<Values>();
    values->declare(options);
    return [values] { return kRun(*values); };
}

// Runs the command that the words name, and returns the exit status. `about`: the help of curb itself.
int dispatch(const std::vector<const Command *> &commands, const Command &about, const std::vector<std::string> &words);

}  // namespace curb::cli
