#include "command/help.hpp"

#include <algorithm>
#include <sstream>
#include <string_view>
#include <utility>

#include "policy/values/words.hpp"
#include "terminal/format.hpp"
#include "terminal/text_width.hpp"

namespace curb::cli {
namespace {

constexpr std::size_t kWidth = 80;
constexpr std::size_t kNarrowest = 30;  // least width of the right column

// Wraps the words to kWidth, from column `at` on. The first line has `at` columns already.
std::string filled(std::string_view words, std::size_t at) { return wrapped(words, kWidth, at, at); }

// Lays out all rows with one left column, as wide as the widest left part that leaves kNarrowest columns for the right
// part. Behind a wider left part, the right part starts on the next line.
std::string rows_text(const std::vector<HelpRow> &rows) {
    std::size_t column = 0;
    for (const HelpRow &row : rows) {
        const std::size_t wanted = 2 + width_of(row.left) + 2;
        if (!row.right.empty() && wanted + kNarrowest <= kWidth) column = std::max(column, wanted);
    }
    if (column == 0) column = 6;
    std::string out;
    for (const HelpRow &row : rows) {
        std::string left = "  " + row.left;
        if (!row.right.empty() && width_of(left) + 2 > column) {
            out += left + '\n';
            left.clear();
        }
        out += row.right.empty() ? left + '\n' : padded(left, column) + filled(row.right, column);
    }
    return out;
}

std::string section(const char *heading, const std::vector<HelpRow> &rows) {
    return rows.empty() ? "" : fmt::format("\n{}:\n{}", heading, rows_text(rows));
}

}  // namespace

std::vector<HelpBlock> blocks_of(const std::string &notes) {
    std::vector<HelpBlock> out;
    std::istringstream lines(notes);
    bool apart = true;  // from what stands above
    for (std::string line; std::getline(lines, line);) {
        const std::string_view words = policy::trimmed(line);
        const bool is_row = line.starts_with(' ');
        if (words.empty()) {
            apart = true;
            continue;
        }
        if (apart || is_row == out.back().rows.empty()) out.push_back({.apart = std::exchange(apart, false)});
        HelpBlock &block = out.back();
        if (is_row) {
            const std::size_t gap = std::min(words.find("  "), words.size());
            block.rows.push_back({std::string(words.substr(0, gap)), std::string(policy::trimmed(words.substr(gap)))});
        } else {
            block.paragraph.append(block.paragraph.empty() ? "" : " ").append(line);
        }
    }
    return out;
}

std::vector<HelpRow> command_rows(const Help &help) {
    std::vector<HelpRow> out;
    for (const Help &one : help.commands) out.push_back({one.name.substr(one.name.rfind(' ') + 1), one.line});
    return out;
}

std::string help_text(const Help &help) {
    std::string out = filled(help.line, 0) + "\nUsage: " + filled(help.usage, 7) +
                      section("Arguments", help.arguments) + section("Options", help.options) +
                      section("Commands", command_rows(help));
    for (const HelpBlock &block : help.notes) {
        if (block.apart) out += '\n';
        out += block.rows.empty() ? filled(block.paragraph, 0) : rows_text(block.rows);
    }
    return out;
}

}  // namespace curb::cli
