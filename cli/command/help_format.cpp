#include "help_format.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "policy/words.hpp"
#include "text_width.hpp"

namespace curb::cli {
namespace {

constexpr std::size_t kWidth = 80;
constexpr std::size_t kNarrowest = 30;  // least width of the right column

struct Row {
    std::string left, right;
};

// Fills lines with the words, from column `at` on. The first line has `at` columns already.
std::string filled(std::string_view words, std::size_t at) {
    std::string out;
    std::size_t column = at;
    for (words = policy::trimmed(words); !words.empty();) {
        const std::size_t end = std::min(words.find(' '), words.size());
        const std::string_view word = words.substr(0, end);
        if (column > at && column + 1 + width_of(word) > kWidth) {
            out.append(1, '\n').append(at, ' ');
            column = at;
        } else if (column > at) {
            out += ' ';
            ++column;
        }
        out += word;
        column += width_of(word);
        words = policy::trimmed(words.substr(end));
    }
    return out + '\n';
}

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
        out.append(2, ' ').append(row.left);
        if (row.right.empty()) {
            out += '\n';
            continue;
        }
        const std::size_t at = 2 + width_of(row.left);
        if (at + 2 <= column)
            out.append(column - at, ' ');
        else
            out.append(1, '\n').append(column, ' ');
        out += filled(row.right, column);
    }
    return out;
}

Row row_of(std::string_view line) {
    line = policy::trimmed(line);
    const std::size_t gap = line.find("  ");
    if (gap == std::string_view::npos) return {std::string(line), ""};
    return {std::string(line.substr(0, gap)), std::string(policy::trimmed(line.substr(gap)))};
}

std::pair<std::string, std::string> description_and_usage(const std::string &description) {
    const std::size_t at = description.find(": curb ");
    if (at == std::string::npos) return {description, ""};
    return {description.substr(0, at), description.substr(at + 2)};
}

std::string name_of(const CLI::App *app) {
    return app->get_parent() ? name_of(app->get_parent()) + ' ' + app->get_name() : app->get_name();
}

bool takes_several(const CLI::Option *option) { return option->get_expected_max() > 1; }

std::string value_name(const CLI::Option *option) {
    if (option->get_positional()) return option->get_single_name();
    if (option->get_type_size() == 0) return "";  // a flag
    const std::string name = option->get_type_name();
    return name.substr(0, name.find(':'));  // CLI11 appends its own checks behind ':'
}

std::vector<const CLI::Option *> options_of(const CLI::App *app, bool positional) {
    return app->get_options([=](const CLI::Option *option) {
        return !option->get_group().empty() && option->get_positional() == positional;
    });
}

std::string usage_of(const CLI::App *app) {
    std::string out = name_of(app) + " [OPTIONS]";
    for (const CLI::Option *option : options_of(app, true)) {
        const std::string name = value_name(option) + (takes_several(option) ? "..." : "");
        out += option->get_required() ? ' ' + name : " [" + name + ']';
    }
    if (app->get_require_subcommand_min() > 0) out += " COMMAND";
    return out;
}

std::vector<Row> option_rows(const CLI::App *app, bool positional) {
    std::vector<Row> rows;
    for (const CLI::Option *option : options_of(app, positional)) {
        const std::string value = value_name(option);
        std::string left = positional ? value : option->get_name(false, true);
        if (!positional && !value.empty()) left += ' ' + value;
        if (takes_several(option)) left += "...";
        rows.push_back({left, option->get_description()});
    }
    return rows;
}

std::vector<Row> command_rows(const CLI::App *app) {
    std::vector<Row> rows;
    for (const CLI::App *command : app->get_subcommands([](const CLI::App *) { return true; }))
        if (!command->get_group().empty())
            rows.push_back({command->get_name(), description_and_usage(command->get_description()).first});
    return rows;
}

void add(std::string &out, const char *heading, const std::vector<Row> &rows) {
    if (!rows.empty()) out += '\n' + std::string(heading) + ":\n" + rows_text(rows);
}

}  // namespace

std::string laid_out(std::string_view text) {
    std::string out, paragraph;
    std::vector<Row> rows;
    const auto end_block = [&] {
        if (!paragraph.empty()) out += filled(paragraph, 0);
        out += rows_text(rows);
        paragraph.clear();
        rows.clear();
    };
    while (!text.empty()) {
        const std::size_t end = std::min(text.find('\n'), text.size());
        const std::string_view line = text.substr(0, end);
        text.remove_prefix(std::min(end + 1, text.size()));
        if (policy::trimmed(line).empty()) {
            end_block();
            out += '\n';
        } else if (line.starts_with(' ')) {
            if (!paragraph.empty()) end_block();
            rows.push_back(row_of(line));
        } else {
            if (!rows.empty()) end_block();
            paragraph.append(paragraph.empty() ? "" : " ").append(line);
        }
    }
    end_block();
    return out;
}

std::string HelpFormat::make_help(const CLI::App *app, std::string /*name*/, CLI::AppFormatMode /*mode*/) const {
    const auto [description, usage] = description_and_usage(app->get_description());
    std::string out = laid_out(description);
    out += "\nUsage: " + filled(usage.empty() ? usage_of(app) : usage, 7);
    add(out, "Arguments", option_rows(app, true));
    add(out, "Options", option_rows(app, false));
    add(out, "Commands", command_rows(app));
    if (const std::string footer = app->get_footer(); !footer.empty())
        out += (footer.starts_with('\n') ? "" : "\n") + laid_out(footer);
    return out;
}

}  // namespace curb::cli
