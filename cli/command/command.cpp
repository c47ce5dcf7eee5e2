// Parses the command line with CLI11 and calls the command. CLI11 never sees the program and arguments behind `curb
// run` or `curb policy explain`: it would look for curb's options there.
#include "command/command.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <deque>
#include <fstream>
#include <map>
#include <sstream>
#include <utility>
#include <vector>

#include "command/candidates.hpp"
#include "command/help.hpp"
#include "policy/values/duration.hpp"
#include "policy/values/size.hpp"
#include "policy/values/words.hpp"
#include "terminal/format.hpp"
#include "terminal/messages.hpp"
#include "terminal/terminal.hpp"

namespace curb::cli {
namespace {

using Words = std::vector<std::string>;

std::vector<const CLI::App *> commands_of(const CLI::App &app) {
    return app.get_subcommands([](const CLI::App *) { return true; });
}

// For the build alone, so it is in no help: fills in the template of a manual page on standard input.
constexpr const char *kManual = "--man";
// For the completion of shells alone: prints what may stand in the place of the last of the words that follow.
constexpr const char *kComplete = "--complete";
constexpr const char *kVerbose = "Print on standard error what curb does";

}  // namespace

// --help, and the manual pages, from what CLI11 knows of the commands.
class Formatter : public CLI::FormatterBase {
  public:
    explicit Formatter(const std::map<const CLI::App *, const Command *> &commands) : commands_(commands) {}

    std::string make_help(const CLI::App *app, std::string /*name*/, CLI::AppFormatMode /*mode*/) const override {
        return help_text(help_of(app));
    }
    [[nodiscard]] Help help_of(const CLI::App *app) const {
        Help out;
        out.name = name_of(app);
        out.line = app->get_description();
        const auto known = commands_.find(app);
        out.usage = known == commands_.end() || !*known->second->usage ? usage_of(app) : known->second->usage;
        out.arguments = option_rows(app, true);
        out.options = option_rows(app, false);
        for (const CLI::App *command : commands_of(*app)) out.commands.push_back(help_of(command));
        out.notes = blocks_of(app->get_footer());
        return out;
    }

  private:
    static std::string name_of(const CLI::App *app) {
        return app->get_parent() ? name_of(app->get_parent()) + ' ' + app->get_name() : app->get_name();
    }
    static std::vector<const CLI::Option *> options_of(const CLI::App *app, bool positional) {
        return app->get_options([=](const CLI::Option *option) {
            return !option->get_group().empty() && option->get_positional() == positional;
        });
    }
    static const char *dots(const CLI::Option *option) { return option->get_expected_max() > 1 ? "..." : ""; }
    static std::string usage_of(const CLI::App *app) {
        std::string out = name_of(app) + " [OPTIONS]";
        for (const CLI::Option *option : options_of(app, true)) {
            const std::string name = option->get_single_name() + dots(option);
            out += option->get_required() ? ' ' + name : " [" + name + ']';
        }
        return out + (app->get_require_subcommand_min() > 0 ? " COMMAND" : "");
    }
    static std::vector<HelpRow> option_rows(const CLI::App *app, bool positional) {
        std::vector<HelpRow> rows;
        for (const CLI::Option *option : options_of(app, positional)) {
            std::string left = positional ? option->get_single_name() : option->get_name(false, true);
            const std::string shape = option->get_type_name();
            const bool is_flag = option->get_type_size() == 0 || shape.empty();
            if (!positional && !is_flag) left += ' ' + shape;
            rows.push_back({left + dots(option), option->get_description()});
        }
        return rows;
    }

    const std::map<const CLI::App *, const Command *> &commands_;
};

namespace {

// Names that other tools use, and the command of curb that does the same.
constexpr std::pair<const char *, const char *> kOtherNames[] = {{"list", "ps"},         {"ls", "ps"},
                                                                 {"status", "ps"},       {"show", "ps"},
                                                                 {"limit", "cap"},       {"set", "cap"},
                                                                 {"exec", "run"},        {"start", "run"},
                                                                 {"free", "release"},    {"stop", "suspend"},
                                                                 {"pause", "suspend"},   {"continue", "resume"},
                                                                 {"watch", "top"},       {"check", "policy check"},
                                                                 {"init", "policy init"}};

int pid_in(const std::string &word) {
    const auto pid = policy::whole_number(word);
    if (!pid || *pid == 0) throw CLI::ValidationError(policy::quote(word) + " is not the pid of a process");
    return *pid;
}

auto taking_pids(std::vector<int> &to) {
    return [&to](const Words &words) {
        for (const std::string &word : words)
            if (const int pid = pid_in(word); std::find(to.begin(), to.end(), pid) == to.end()) to.push_back(pid);
    };
}

std::string_view nearest(std::string_view word, const Words &names) {
    return policy::nearest(word, std::vector<std::string_view>(names.begin(), names.end()));
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
void Options::hidden_options(const char *name, Words &to) {
    command_.add_option(name, to)->group("")->allow_extra_args(false);
}
void Options::options(const char *name, Words &to, const char *shape, const char *line) {
    command_.add_option(name, to, line)->type_name(shape)->allow_extra_args(false);  // an argument may follow
}
void Options::argument(const char *name, std::string &to, const char *line, Need need) {
    command_.add_option(name, to, line)->required(need == Need::required);
}
void Options::arguments(const char *name, Words &to, const char *line) {
    command_.add_option(name, to, line)->required();
}
void Options::pid(int &to, const char *line) {
    command_.add_option_function<std::string>(
        "PID", [&to](const std::string &word) { to = pid_in(word); }, line);
}
void Options::pids(std::vector<int> &to, const char *line) {
    command_.add_option_function<Words>("PID", taking_pids(to), line);
}
void Options::pid_options(const char *name, std::vector<int> &to, const char *line) {
    command_.add_option_function<Words>(name, taking_pids(to), line)->type_name("PID")->allow_extra_args(false);
}
void Options::words(const char *name, Words &to, const char *line) { command_.add_option(name, to, line); }
void Options::rest(Words &to, Rest where) {
    rest_ = &to;
    where_ = where;
}

// The commands, registered with CLI11.
class Commands {
  public:
    Commands(const std::vector<const Command *> &commands, const Command &about) : app_(about.line, about.name) {
        app_.formatter(format_);
        app_.footer(about.help);
        app_.set_version_flag("-V,--version", "curb " CURB_VERSION);
        app_.add_flag("--verbose", verbose_, kVerbose);
        app_.require_subcommand(1);
        for (const Command *one : commands) add(*one);
    }

    int run(const Words &typed) {
        if (typed == Words{kManual}) {
            std::ifstream pattern("/dev/stdin");
            print(manual_page(format_->help_of(&app_), {std::istreambuf_iterator<char>(pattern), {}}));
            return 0;
        }
        if (!typed.empty() && typed.front() == kComplete) {
            for (const auto &[word, line] : candidates({typed.begin() + 1, typed.end()}))
                print(fmt::format("{}{}{}\n", word, line.empty() ? "" : "\t", line));
            return 0;
        }
        const Words words = with_options(typed);
        Split parts{words, {}};
        if (const Options *options = options_of(words)) {
            parts = split(words, *options);
            *options->rest_ = parts.rest;
        }
        if (const std::string fault = two_words(parts); !fault.empty()) return failed(fault);
        std::reverse(parts.ours.begin(), parts.ours.end());  // CLI11 takes the words in reverse
        try {
            app_.parse(std::move(parts.ours));
        } catch (const CLI::ParseError &error) {
            if (error.get_exit_code() != 0) return refuse(words, error);
            std::ostringstream answer;  // to --help or --version
            app_.exit(error, answer);
            print(answer.str());
            return 0;
        }
        if (!parts.clear) {
            say::error("run: '" + parts.rest.front() + "' stands before --, so it is unclear where the command begins");
            return failed("write -- once, right before the command: curb run [OPTIONS] -- COMMAND");
        }
        if (verbose_) say::all();
        return chosen_();
    }

  private:
    struct Split {
        Words ours;
        Words rest;
        bool clear = true;  // false: a word before `--` may be the first of the rest
    };

    // Returns what may stand in the place of the last word. ":command N" stands for a command line of its own, which
    // begins at that word.
    [[nodiscard]] std::vector<HelpRow> candidates(const Words &words) const {
        if (words.empty()) return {};
        const std::size_t last = words.size() - 1;
        std::size_t at = 0;
        const CLI::App *app = command_in(words, at);
        if (!app) return {};
        const auto rest = std::find_if(options_.begin(), options_.end(),
                                       [&](const Options &one) { return &one.command_ == app && one.rest_; });
        const bool at_first_word = rest != options_.end() && rest->where_ == Rest::at_first_word;
        const auto own_line = [](std::size_t begin) {
            return std::vector<HelpRow>{{":command " + std::to_string(begin), ""}};
        };
        std::size_t arguments = 0;
        for (; at < last; ++at) {
            if (words[at] == "--") return rest == options_.end() ? std::vector<HelpRow>() : own_line(at + 1);
            if (!is_option(words[at])) {
                if (at_first_word) return own_line(at);
                ++arguments;
            } else if (valued(*app, words[at]) && words[at + 1] != "--" && ++at == last) {
                return values(*app, words[at - 1]);
            }
        }
        if (at_first_word && !is_option(words.back())) return own_line(last);
        return candidates(*app, words.back(), arguments);
    }

    // Returns the command that the words before the last one name, and in `at` the word behind its name. null: there is
    // none of that name.
    const CLI::App *command_in(const Words &words, std::size_t &at) const {
        const CLI::App *app = &app_;
        while (!commands_of(*app).empty()) {
            while (at + 1 < words.size() && is_option(words[at])) ++at;
            if (at + 1 == words.size()) break;
            const auto named = app->get_subcommands([&](const CLI::App *one) { return one->check_name(words[at]); });
            if (named.empty()) return nullptr;
            app = named.front();
            ++at;
        }
        return app;
    }

    // Returns what may stand in the place of `current`, behind so many arguments of the command.
    [[nodiscard]] std::vector<HelpRow> candidates(const CLI::App &app, const std::string &current,
                                                  std::size_t arguments) const {
        if (const std::size_t equals = current.find('='); is_option(current) && equals != std::string::npos) {
            const std::string name = current.substr(0, equals);
            std::vector<HelpRow> out = valued(app, name) ? values(app, name) : std::vector<HelpRow>();
            for (HelpRow &row : out)
                if (row.left != kFiles) row.left = name + '=' + row.left;
            return out;
        }
        const Help help = format_->help_of(&app);
        std::vector<HelpRow> out;
        if (is_option(current)) {
            for (const auto &[left, right] : help.options) {
                std::istringstream spellings(left.substr(0, left.find(' ')));
                for (std::string one; std::getline(spellings, one, ',');) out.push_back({one, right});
            }
        } else if (!help.commands.empty()) {
            for (const Help &one : help.commands) out.push_back({one.name.substr(one.name.rfind(' ') + 1), one.line});
        } else if (!help.arguments.empty()) {
            const std::string &due = help.arguments[std::min(arguments, help.arguments.size() - 1)].left;
            if (arguments < help.arguments.size() || due.ends_with("...")) return values_of(due, "", app.get_name());
        }
        return out;
    }

    static bool is_option(const std::string &word) { return word.starts_with("-"); }
    static std::vector<HelpRow> values(const CLI::App &command, const std::string &option) {
        return values_of(valued(command, option)->get_type_name(), option, command.get_name());
    }

    // Returns the option of that name if it takes a value.
    static const CLI::Option *valued(const CLI::App &command, const std::string &name) {
        const CLI::Option *option = command.get_option_no_throw(name);
        return option && option->get_items_expected_max() > 0 ? option : nullptr;
    }

    // Replaces `curb help COMMAND` and `curb version` by --help and --version. Drops the words behind a command, so
    // that the command does not run: `curb help release 4711`. A word behind `help` that is no command is the same
    // error as without `help`.
    [[nodiscard]] Words with_options(Words words) const {
        // `curb --verbose ps`: behind the command, where its other options stand.
        if (words.size() > 1 && words.front() == "--verbose")
            std::rotate(words.begin(), words.begin() + 1, words.begin() + 2);
        if (words.empty() || (words.front() != "help" && words.front() != "version")) return words;
        if (words.front() == "version") return {"--version"};
        Words out(words.begin() + 1, words.end());
        const Place at = place_of(out);
        if (at.next != out.end() && at.command->get_require_subcommand_min() > 0) return out;
        out.erase(at.next, out.end());
        out.emplace_back("--help");
        return out;
    }

    // Returns the error for a value of two words: "--cap 8 GiB". Empty if there is none. The unit may begin the rest.
    static std::string two_words(const Split &parts) {
        Words words = parts.ours;
        if (!parts.rest.empty()) words.push_back(parts.rest.front());
        for (std::size_t i = 0; i + 1 < words.size(); ++i) {
            const std::string &number = words[i], &unit = words[i + 1], whole = number + unit;
            const bool is_number =
                !number.empty() && number.find_first_not_of("0123456789.") == std::string::npos && !unit.empty();
            if (is_number && !policy::is_digit(unit.front()) &&
                (policy::parse_size(whole) || policy::parse_duration(whole)))
                return fmt::format("'{} {}' is two words, and a value is one: write {}", number, unit, whole);
        }
        return {};
    }

    void add(const Command &one) {
        CLI::App *command = (*one.group ? app_.get_subcommand(one.group) : &app_)->add_subcommand(one.name, one.line);
        command->footer(one.help);
        described_[command] = &one;
        if (!one.takes) {
            command->require_subcommand(1);
            return;
        }
        Options &options = options_.emplace_back(*command);
        command->callback([this, call = one.takes(options)] { chosen_ = call; });
        command->add_flag("--verbose", verbose_, kVerbose);
    }

    // Returns the options of the command that the words begin with. Returns null if it takes no rest.
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
                if (valued(options.command_, *begin) && begin + 1 != words.end() && begin[1] != "--") ++begin;
            }
        if (begin == words.end()) return {words, {}};
        const bool at_dashes = *begin == "--";
        return {{words.begin(), begin},
                {begin + (at_dashes ? 1 : 0), words.end()},
                at_dashes || std::find(begin, words.end(), "--") == words.end()};
    }

    // A command, its whole name, and the word behind it.
    struct Place {
        const CLI::App *command;
        std::string name;
        Words::const_iterator next;
    };
    // Returns the command that the words name, as far as they name one.
    Place place_of(const Words &words) const {
        Place out{&app_, app_.get_name(), words.begin()};
        for (; out.next != words.end(); ++out.next) {
            const auto named =
                out.command->get_subcommands([&](const CLI::App *one) { return one->check_name(*out.next); });
            if (named.empty()) break;
            out.command = named.front();
            out.name += ' ' + *out.next;
        }
        return out;
    }

    // Returns "; did you mean --json?" Empty if no option of the command is similar to the word.
    static std::string near_option(const CLI::App &command, const std::string &word) {
        Words names;
        for (const CLI::Option *option : command.get_options())
            for (const std::string &name : option->get_lnames()) names.push_back("--" + name);
        const std::string_view near = nearest(std::string_view(word).substr(0, word.find('=')), names);
        return near.empty() ? "" : "; did you mean " + std::string(near) + "?";
    }

    // Returns a suggestion for a word that is not a command. Empty if there is none.
    static std::string near_command(const Place &at, const Words &words) {
        const std::string &word = *at.next;
        for (const auto &[other, ours] : kOtherNames)
            if (word == other && at.name == "curb") return fmt::format("; did you mean curb {}?", ours);
        Words names;
        for (const CLI::App *one : commands_of(*at.command)) names.push_back(one->get_name());
        if (const std::string_view near = nearest(word, names); !near.empty())
            return fmt::format("; did you mean {} {}?", at.name, near);
        if (at.name != "curb") return {};
        if (word.starts_with("-")) {
            for (const CLI::App *one : commands_of(*at.command))
                if (one->get_option_no_throw(word.substr(0, word.find('='))))
                    return fmt::format("; it is an option of curb {}", one->get_name());
            return near_option(*at.command, word);
        }
        return find_program(word, variable("PATH")) ? "; to run a program: curb run -- " + policy::joined(words, " ")
                                                    : "";
    }

    // Returns CLI11's error about the words of one command in curb's words.
    static std::string text_of(const Place &at, const CLI::ParseError &error) {
        std::string said = error.what();
        if (dynamic_cast<const CLI::ExtrasError *>(&error)) {
            for (const std::string &word : at.command->remaining(true)) {
                if (word.starts_with("-") && word != "-")
                    return at.name + " has no option " + policy::quote(word) + near_option(*at.command, word);
                return at.name + " does not expect " + policy::quote(word);
            }
        }
        if (dynamic_cast<const CLI::ArgumentMismatch *>(&error))
            if (const auto colon = said.find(": "), required = said.find(" required "); required != std::string::npos)
                return fmt::format("{}: {} needs a value", at.name, said.substr(0, colon));
        if (dynamic_cast<const CLI::ConversionError *>(&error))
            if (const auto option = said.find("--"); option != std::string::npos)
                return fmt::format("{}: {} takes no value", at.name,
                                   said.substr(option, said.find(' ', option) - option));
        return said;
    }

    // Prints the error and points to the command's --help.
    int refuse(const Words &words, const CLI::ParseError &error) const {
        const Place at = place_of(words);
        std::string why;
        if (at.command->get_require_subcommand_min() == 0) {
            why = text_of(at, error);
        } else if (at.next == words.end()) {
            why = at.name + " needs a command: " + policy::joined(commands_of(*at.command), ", ", &CLI::App::get_name);
        } else {
            why = at.name + " has no " + (at.next->starts_with("-") ? "option " : "command ") +
                  policy::quote(*at.next) + near_command(at, words);
        }
        say::error(why);
        return failed("see " + at.name + " --help");
    }

    std::map<const CLI::App *, const Command *> described_;
    std::shared_ptr<Formatter> format_ = std::make_shared<Formatter>(described_);
    CLI::App app_;
    std::deque<Options> options_;  // a deque: the callbacks hold references
    std::function<int()> chosen_;
    bool verbose_ = false;
};

int dispatch(const std::vector<const Command *> &commands, const Command &about, const Words &words) {
    return Commands(commands, about).run(words);
}

}  // namespace curb::cli
