// Turns the words of the command line into one call of a command, by CLI11.
//
// The command of `curb run` or `curb policy explain` never passes through CLI11, which would look for its options in
// it: the words are split first.
#include "command.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <deque>
#include <sstream>

#include "help_format.hpp"
#include "policy/words.hpp"
#include "terminal.hpp"

namespace curb::cli {

using Words = std::vector<std::string>;

namespace {

int pid_in(const std::string &word) {
    const auto pid = policy::whole_number(word);
    if (!pid || *pid == 0) throw CLI::ValidationError(policy::quote(word) + " is not the pid of a process");
    return *pid;
}

}  // namespace

void Options::flag(const char *name, bool &to, const char *line) { command_.add_flag(name, to, line); }
void Options::option(const char *name, std::optional<std::string> &to, const char *shape, const char *line) {
    command_.add_option(name, to, line)->type_name(shape);
}
void Options::option(const char *name, std::string &to, const char *shape, const char *line) {
    command_.add_option(name, to, line)->type_name(shape);
}
void Options::options(const char *name, Words &to, const char *shape, const char *line) {
    command_.add_option(name, to, line)->type_name(shape)->allow_extra_args(false);  // an argument may follow
}
void Options::argument(const char *name, std::string &to, const char *line, Need need) {
    command_.add_option(name, to, line)->required(need == Need::required);
}
void Options::argument(const char *name, std::optional<std::string> &to, const char *line) {
    command_.add_option(name, to, line);
}
void Options::arguments(const char *name, Words &to, const char *line) {
    command_.add_option(name, to, line)->required();
}
void Options::pid(int &to, const char *line, Need need) {
    command_
        .add_option_function<std::string>(
            "PID", [&to](const std::string &word) { to = pid_in(word); }, line)
        ->required(need == Need::required);
}
void Options::pids(std::vector<int> &to, const char *line) {
    const auto take = [&to](const Words &words) {
        for (const std::string &word : words)
            if (const int pid = pid_in(word); std::find(to.begin(), to.end(), pid) == to.end()) to.push_back(pid);
    };
    command_.add_option_function<Words>("PID", take, line);
}
void Options::rest(Words &to, Rest where) {
    rest_ = &to;
    where_ = where;
}

// The commands as CLI11 knows them.
class Commands {
  public:
    Commands(const std::vector<const Command *> &commands, const Command &about) : app_(about.line, about.name) {
        app_.formatter(std::make_shared<HelpFormat>());
        app_.footer(about.help);
        app_.set_version_flag("--version", "curb " CURB_VERSION);
        app_.require_subcommand(1);
        for (const Command *one : commands) add(*one);
    }

    int run(const Words &words) {
        Split parts{words, {}};
        if (const Options *options = options_of(words)) {
            parts = split(words, *options);
            *options->rest_ = parts.rest;
        }
        std::reverse(parts.ours.begin(), parts.ours.end());  // as CLI11 wants them
        try {
            app_.parse(std::move(parts.ours));
        } catch (const CLI::ParseError &error) {
            if (error.get_exit_code() != 0) return refuse(words, error.what());
            std::ostringstream answer;  // to --help or --version
            app_.exit(error, answer);
            print(answer.str());
            return 0;
        }
        if (!parts.clear) {
            complain("run: '" + parts.rest.front() + "' stands before --, so it is unclear where the command begins");
            complain("write -- once, right before the command: curb run [OPTIONS] -- COMMAND");
            return kFailure;
        }
        return chosen_();
    }

  private:
    struct Split {
        Words ours;
        Words rest;
        bool clear = true;  // false: a word stands before `--` that may or may not begin the rest
    };

    void add(const Command &one) {
        CLI::App *command = (*one.group ? app_.get_subcommand(one.group) : &app_)->add_subcommand(one.name, one.line);
        command->footer(one.help);
        if (!one.takes) {
            command->require_subcommand(1);
            return;
        }
        Options &options = options_.emplace_back(*command);
        command->callback([this, call = one.takes(options)] { chosen_ = call; });
    }

    // Returns the options of the command that the words begin with, if it takes a rest.
    const Options *options_of(const Words &words) const {
        for (const Options &one : options_) {
            if (!one.rest_) continue;
            const CLI::App *parent = one.command_.get_parent();
            const Words path =
                parent == &app_ ? Words{one.command_.get_name()} : Words{parent->get_name(), one.command_.get_name()};
            if (words.size() >= path.size() && std::equal(path.begin(), path.end(), words.begin())) return &one;
        }
        return nullptr;
    }

    static Split split(const Words &words, const Options &options) {
        const auto dashes = std::find(words.begin(), words.end(), "--");
        auto begin = dashes;
        if (options.where_ == Rest::at_first_word)
            for (begin = words.begin() + 1; begin != words.end(); ++begin) {
                if (!begin->starts_with("-") || *begin == "--") break;
                const CLI::Option *option = options.command_.get_option_no_throw(*begin);
                const bool takes_next = option != nullptr && option->get_items_expected_max() > 0;
                if (takes_next && begin + 1 != words.end() && begin[1] != "--") ++begin;
            }
        if (begin == words.end()) return {words, {}};
        const bool at_dashes = *begin == "--";
        return {{words.begin(), begin},
                {begin + (at_dashes ? 1 : 0), words.end()},
                at_dashes || std::find(begin, words.end(), "--") == words.end()};
    }

    // Prints the error, and names the help of the command that the words lead to.
    int refuse(const Words &words, std::string why) const {
        std::string name = app_.get_name();
        const CLI::App *command = &app_;
        auto word = words.begin();
        for (; word != words.end(); ++word) {
            const auto named = command->get_subcommands([&](const CLI::App *one) { return one->check_name(*word); });
            if (named.empty()) break;
            command = named.front();
            name += ' ' + *word;
        }
        if (command->get_require_subcommand_min() > 0) {
            why = name + " needs a command";
            if (word != words.end())
                why = name + " has no " + (word->starts_with("-") ? "option " : "command ") + policy::quote(*word);
        }
        complain(why);
        complain("see " + name + " --help");
        return kFailure;
    }

    CLI::App app_;
    std::deque<Options> options_;  // which stay where they are
    std::function<int()> chosen_;
};

int dispatch(const std::vector<const Command *> &commands, const Command &about, const Words &words) {
    return Commands(commands, about).run(words);
}

}  // namespace curb::cli
