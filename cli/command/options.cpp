// The options and arguments of a command, as CLI11 takes them.
#include <CLI/CLI.hpp>
#include <algorithm>

#include "command/command.hpp"
#include "policy/values/words.hpp"

namespace curb::cli {
namespace {

int pid_in(const std::string &word) {
    const auto pid = policy::whole_number(word);
    if (!pid || *pid == 0) throw CLI::ValidationError(policy::quote(word) + " is not the pid of a process");
    return *pid;
}

auto taking_pids(std::vector<int> &to) {
    return [&to](const std::vector<std::string> &words) {
        for (const std::string &word : words)
            if (const int pid = pid_in(word); std::find(to.begin(), to.end(), pid) == to.end()) to.push_back(pid);
    };
}

}  // namespace

void Options::flag(const char *name, bool &to, const char *line) { command_.add_flag(name, to, line); }
void Options::option(const char *name, std::optional<std::string> &to, const char *shape, const char *line) {
    command_.add_option(name, to, line)->type_name(shape);
}
void Options::option(const char *name, std::string &to, const char *shape, const char *line) {
    command_.add_option(name, to, line)->type_name(shape);
}
void Options::option_or(const char *name, std::optional<std::string> &to, const char *shape, const char *without,
                        const char *line) {
    command_.add_option(name, to, line)->type_name(shape)->expected(0, 1)->default_str(without);
}
void Options::hidden_flag(const char *name, bool &to) { command_.add_flag(name, to)->group(""); }
void Options::hidden_options(const char *name, std::vector<std::string> &to) {
    command_.add_option(name, to)->group("")->allow_extra_args(false);
}
void Options::options(const char *name, std::vector<std::string> &to, const char *shape, const char *line) {
    command_.add_option(name, to, line)->type_name(shape)->allow_extra_args(false);  // an argument may follow
}
void Options::argument(const char *name, std::string &to, const char *line) { command_.add_option(name, to, line); }
void Options::arguments(const char *name, std::vector<std::string> &to, const char *line) {
    command_.add_option(name, to, line)->required();
}
void Options::pid(int &to, const char *line) {
    command_.add_option_function<std::string>(
        "PID", [&to](const std::string &word) { to = pid_in(word); }, line);
}
void Options::pids(std::vector<int> &to, const char *line) {
    command_.add_option_function<std::vector<std::string>>("PID", taking_pids(to), line);
}
void Options::pid_options(const char *name, std::vector<int> &to, const char *line) {
    command_.add_option_function<std::vector<std::string>>(name, taking_pids(to), line)
        ->type_name("PID")
        ->allow_extra_args(false);
}
void Options::words(const char *name, std::vector<std::string> &to, const char *line) {
    command_.add_option(name, to, line);
}
void Options::rest(std::vector<std::string> &to, Rest where) {
    rest_ = &to;
    where_ = where;
}

policy::Result<policy::Bytes, std::string> bytes_in(const std::string &text) {
    const auto size = policy::parse_size(text);
    if (!size) return "--bytes: " + size.error();
    if (size->unit != policy::Size::Unit::bytes)
        return "--bytes " + text + ": a share of which device? Write an amount, as 8GiB";
    return size->amount;
}

}  // namespace curb::cli
