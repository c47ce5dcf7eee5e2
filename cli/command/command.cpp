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
#include "command/hints.hpp"
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

// Declares the options of every command. They may stand before its name too.
void add_common(CLI::App &command, bool &verbose) {
    const auto take = [](const std::string &when) {
        if (!use_colour(when))
            throw CLI::ValidationError("--color: " + policy::quote(when) + " is neither auto, always nor never");
    };
    command.add_flag("-v,--verbose", verbose, "Print on standard error what curb does");
    command.add_option_function<std::string>("--color", take, "Colours: auto, always or never")->type_name("WHEN");
}

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

// The commands, registered with CLI11.
class Commands {
  public:
    Commands(const std::vector<const Command *> &commands, const Command &about) : app_(about.line, about.name) {
        app_.formatter(format_);
        app_.footer(about.help);
        app_.set_version_flag("-V,--version", "curb " CURB_VERSION);
        add_common(app_, verbose_);
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
        if (const Place at = place_of(words); at.next == words.end() && at.command->get_require_subcommand_min() > 0) {
            print(help_text(format_->help_of(at.command)));
            return 0;
        }
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
            say::error("'" + parts.rest.front() + "' stands before --, so it is unclear where the command begins");
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
        if (last > 0 && words.front() == "help") return help_candidates(words);
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
            } else if (const CLI::Option *option = awaiting(*app, words[at]);
                       option && words[at + 1] != "--" && ++at == last) {
                return values(*app, *option);
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
            while (at + 1 < words.size() && is_option(words[at])) {
                const std::size_t next = at + (awaiting(*app, words[at]) ? 2 : 1);
                if (next == words.size()) return app;  // its value is asked for
                at = next;
            }
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
            const CLI::Option *option = awaiting(app, name);
            std::vector<HelpRow> out = option ? values(app, *option) : std::vector<HelpRow>();
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
            out = command_rows(help);
            if (&app == &app_) out.insert(out.end(), {{"help", "Show the help of a command"}, {"version", ""}});
        } else if (!help.arguments.empty()) {
            const std::string &due = help.arguments[std::min(arguments, help.arguments.size() - 1)].left;
            if (arguments < help.arguments.size() || due.ends_with("...")) return values_of(due, "", app.get_name());
        }
        return out;
    }

    static bool is_option(const std::string &word) { return word.starts_with("-"); }
    static bool is_common(const std::string &word) {
        return word == "-v" || word == "--verbose" || word == "--color" || word.starts_with("--color=");
    }
    static std::vector<HelpRow> values(const CLI::App &command, const CLI::Option &option) {
        return values_of(option.get_type_name(), "--" + option.get_lnames().front(), command.get_name());
    }
    // Returns what may stand in the place of the last word of `curb help WORDS`.
    [[nodiscard]] std::vector<HelpRow> help_candidates(const Words &words) const {
        const Words before(words.begin() + 1, words.end() - 1);
        const Place at = place_of(before);
        return at.next == before.end() ? command_rows(format_->help_of(at.command)) : std::vector<HelpRow>();
    }

    // Returns the option of the word whose value is the next word: of `--cap`, `-c` and `-vc`, but not of `-c8GiB`.
    static const CLI::Option *awaiting(const CLI::App &command, const std::string &word) {
        const auto valued = [&](const std::string &name) {
            const CLI::Option *option = command.get_option_no_throw(name);
            return option && option->get_items_expected_max() > 0 ? option : nullptr;
        };
        if (word.starts_with("--")) return valued(word);
        for (std::size_t i = 1; i < word.size(); ++i)
            if (const CLI::Option *option = valued({'-', word[i]})) return i + 1 == word.size() ? option : nullptr;
        return nullptr;
    }

    // Replaces `curb help COMMAND` and `curb version` by --help and --version. Drops the words behind a command, so
    // that the command does not run: `curb help release 4711`. A word behind `help` that is no command is the same
    // error as without `help`.
    [[nodiscard]] Words with_options(Words words) const {
        // `curb --verbose ps`: behind the command, where its other options stand.
        std::size_t common = 0;
        while (common < words.size() && is_common(words[common])) common += awaiting(app_, words[common]) ? 2 : 1;
        if (common != 0 && common < words.size()) {
            const Words first(words.begin(), words.begin() + static_cast<std::ptrdiff_t>(common));
            words.erase(words.begin(), words.begin() + static_cast<std::ptrdiff_t>(common));
            words.insert(place_of(words).next, first.begin(), first.end());
        }
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
        add_common(*command, verbose_);
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
                if (awaiting(options.command_, *begin) && begin + 1 != words.end() && begin[1] != "--") ++begin;
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

    // Returns the text that helps with a wrong option of the command. Empty if there is none.
    static std::string near_option(const Place &at, const std::string &word) {
        Words names;
        for (const CLI::Option *option : at.command->get_options())
            for (const std::string &name : option->get_lnames()) names.push_back("--" + name);
        return hint_for(at.name, word, names);
    }

    // Returns the same for a word that is not a command.
    static std::string near_command(const Place &at, const Words &words) {
        const std::string &word = *at.next;
        Words names;
        for (const CLI::App *one : commands_of(*at.command)) names.push_back(one->get_name());
        if (std::string hint = hint_for(at.name, word, names); !hint.empty()) return hint;
        if (at.name != "curb") return {};
        if (is_option(word)) {
            for (const CLI::App *one : commands_of(*at.command))
                if (one->get_option_no_throw(word.substr(0, word.find('='))))
                    return fmt::format("; it is an option of curb {}", one->get_name());
            return near_option(at, word);
        }
        return find_program(word, variable("PATH")) ? "; to run a program: curb run -- " + policy::joined(words, " ")
                                                    : "";
    }

    // "policy check" of curb policy check: the prefix of messages names curb.
    static std::string short_name(const Place &at) {
        return at.name.substr(std::min(at.name.find(' ') + 1, at.name.size()));
    }

    // Returns the error for words that the command does not take.
    std::string text_of_extras(const Place &at) const {
        for (const std::string &word : at.command->remaining(true)) {
            if (is_option(word) && word != "-")
                return short_name(at) + " has no option " + policy::quote(word) + near_option(at, word);
            const bool takes_rest = std::any_of(options_.begin(), options_.end(), [&](const Options &one) {
                return &one.command_ == at.command && one.rest_;
            });
            return short_name(at) + " does not expect " + policy::quote(word) +
                   (takes_rest ? " before --; a command stands behind it: " + format_->help_of(at.command).usage : "");
        }
        return {};
    }

    // Returns CLI11's error about the words of one command in curb's words.
    std::string text_of(const Place &at, const CLI::ParseError &error) const {
        const std::string said = error.what(), first = said.substr(0, said.find_first_of(": "));
        if (dynamic_cast<const CLI::ExtrasError *>(&error)) return text_of_extras(at);
        if (dynamic_cast<const CLI::RequiredError *>(&error))
            return short_name(at) + " needs " + first + ": " + format_->help_of(at.command).usage;
        if (dynamic_cast<const CLI::ArgumentMismatch *>(&error))
            return first + (said.find("received") == std::string::npos ? " needs a value"
                                                                       : " is given more than once; write it once");
        if (dynamic_cast<const CLI::ConversionError *>(&error))
            if (const auto option = said.find("--"); option != std::string::npos)
                return said.substr(option, said.find(' ', option) - option) + " takes no value";
        return said;
    }

    // Prints the error and points to the command's --help.
    int refuse(const Words &words, const CLI::ParseError &error) const {
        const Place at = place_of(words);
        std::string why;
        if (at.command->get_require_subcommand_min() == 0)
            why = text_of(at, error);
        else if (at.command == &app_ && is_common(*at.next))
            why = policy::quote(*at.next) + " needs a command behind it; for the version: curb -V";
        else
            why = (at.command == &app_ ? "there is no " : short_name(at) + " has no ") +
                  (is_option(*at.next) ? "option " : "command ") + policy::quote(*at.next) + near_command(at, words);
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
