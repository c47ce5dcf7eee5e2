// Turns the words of the command line into one call of a command, by CLI11. CLI11 never sees the command of `curb run`
// or `curb policy explain`: it would look for its options there.
#include "command.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <deque>
#include <sstream>
#include <utility>
#include <vector>

#include "policy/words.hpp"
#include "terminal.hpp"
#include "text_width.hpp"

namespace curb::cli {
namespace {

constexpr std::size_t kWidth = 80;
constexpr std::size_t kNarrowest = 30;  // least width of the right column

struct Row {
    std::string left, right;
};

// Fills lines with the words, from column `at` on. The first line has `at` columns already.
std::string filled(std::string_view words, std::size_t at) { return wrapped(words, kWidth, at, at); }

// Lays out all rows with one left column, as wide as the widest left part that leaves room for the right one. Below a
// wider left part the right part starts on the next line.
std::string rows_text(const std::vector<Row> &rows) {
    std::size_t column = 0;
    for (const Row &row : rows) {
        const std::size_t wanted = 2 + width_of(row.left) + 2;
        if (!row.right.empty() && wanted + kNarrowest <= kWidth) column = std::max(column, wanted);
    }
    if (column == 0) column = 6;
    std::string out;
    for (const Row &row : rows) {
        std::string left = "  " + row.left;
        if (!row.right.empty() && width_of(left) + 2 > column) {
            out += left + '\n';
            left.clear();
        }
        out += row.right.empty() ? left + '\n' : padded(left, column) + filled(row.right, column);
    }
    return out;
}

// Fills paragraphs to the width. An indented line is a row of two columns, separated by two blanks.
std::string laid_out(const std::string &text) {
    std::string out, paragraph, line;
    std::vector<Row> rows;
    const auto end_block = [&] {
        if (!paragraph.empty()) out += filled(paragraph, 0);
        out += rows_text(rows);
        paragraph.clear();
        rows.clear();
    };
    std::istringstream lines(text);
    while (std::getline(lines, line)) {
        const std::string_view words = policy::trimmed(line);
        const bool is_row = line.starts_with(' ');
        if (words.empty() || (is_row ? !paragraph.empty() : !rows.empty())) end_block();
        if (words.empty()) {
            out += '\n';
        } else if (is_row) {
            const std::size_t gap = std::min(words.find("  "), words.size());
            rows.push_back({std::string(words.substr(0, gap)), std::string(policy::trimmed(words.substr(gap)))});
        } else {
            paragraph.append(paragraph.empty() ? "" : " ").append(line);
        }
    }
    end_block();
    return out;
}

// Lays out --help in 80 columns, the same with every version of CLI11. scripts/documents and completion/curb.bash read
// the result. A description that ends in ": curb …" names its own usage, where CLI11 does not know all of it.
class HelpFormat : public CLI::FormatterBase {
  public:
    std::string make_help(const CLI::App *app, std::string /*name*/, CLI::AppFormatMode /*mode*/) const override {
        const auto [description, usage] = description_and_usage(app);
        std::vector<Row> commands;
        for (const CLI::App *command : app->get_subcommands([](const CLI::App *) { return true; }))
            commands.push_back({command->get_name(), description_and_usage(command).first});
        const std::string footer = app->get_footer();
        return laid_out(description) + "\nUsage: " + filled(usage, 7) + section("Arguments", option_rows(app, true)) +
               section("Options", option_rows(app, false)) + section("Commands", commands) +
               (footer.empty() || footer.starts_with('\n') ? "" : "\n") + laid_out(footer);
    }

  private:
    static std::pair<std::string, std::string> description_and_usage(const CLI::App *app) {
        const std::string both = app->get_description();
        const std::size_t at = both.find(": curb ");
        return {both.substr(0, at), at == std::string::npos ? usage_of(app) : both.substr(at + 2)};
    }
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
    static std::vector<Row> option_rows(const CLI::App *app, bool positional) {
        std::vector<Row> rows;
        for (const CLI::Option *option : options_of(app, positional)) {
            std::string left = positional ? option->get_single_name() : option->get_name(false, true);
            std::string shape = option->get_type_name();
            shape.resize(std::min(shape.find(':'), shape.size()));  // CLI11 appends its own checks behind ':'
            const bool is_flag = option->get_type_size() == 0 || shape.empty();
            if (!positional && !is_flag) left += ' ' + shape;
            rows.push_back({left + dots(option), option->get_description()});
        }
        return rows;
    }
    static std::string section(const char *heading, const std::vector<Row> &rows) {
        return rows.empty() ? "" : fmt::format("\n{}:\n{}", heading, rows_text(rows));
    }
};

int pid_in(const std::string &word) {
    const auto pid = policy::whole_number(word);
    if (!pid || *pid == 0) throw CLI::ValidationError(policy::quote(word) + " is not the pid of a process");
    return *pid;
}

}  // namespace

using Words = std::vector<std::string>;

void Options::flag(const char *name, bool &to, const char *line) { command_.add_flag(name, to, line); }
void Options::option(const char *name, std::optional<std::string> &to, const char *shape, const char *line) {
    command_.add_option(name, to, line)->type_name(shape);
}
void Options::option(const char *name, std::string &to, const char *shape, const char *line) {
    command_.add_option(name, to, line)->type_name(shape);
}
void Options::hidden_flag(const char *name, bool &to) { command_.add_flag(name, to)->group(""); }
void Options::hidden_option(const char *name, std::string &to) { command_.add_option(name, to)->group(""); }
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
            return failed("write -- once, right before the command: curb run [OPTIONS] -- COMMAND");
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
        return failed("see " + name + " --help");
    }

    CLI::App app_;
    std::deque<Options> options_;  // which stay where they are
    std::function<int()> chosen_;
};

int dispatch(const std::vector<const Command *> &commands, const Command &about, const Words &words) {
    return Commands(commands, about).run(words);
}

}  // namespace curb::cli
