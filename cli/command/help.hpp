// The help of a command, laid out for a terminal or as a manual page.
#pragma once

#include <string>
#include <vector>

namespace curb::cli {

struct HelpRow {
    std::string left, right;
};
// A paragraph or rows of two columns, from a command's notes.
struct HelpBlock {
    bool apart = false;  // an empty line stands before it
    std::string paragraph{};
    std::vector<HelpRow> rows{};
};
struct Help {
    std::string name;  // "curb policy check"
    std::string line, usage;
    std::vector<HelpRow> arguments, options;
    std::vector<Help> commands;
    std::vector<HelpBlock> notes;
};

// Returns a row for each command: "check" of curb policy check, and its line.
std::vector<HelpRow> command_rows(const Help &help);

// Splits notes into blocks. An indented line is a row of two columns, separated by two blanks.
std::vector<HelpBlock> blocks_of(const std::string &notes);

// Lays out --help in 80 columns, the same with every version of CLI11. Tests parse it.
std::string help_text(const Help &help);

// Returns the manual page, in mdoc, whose template is `text`. In the template a line of its own stands for a part:
//
//   @synopsis@, @commands@, @examples@   of `curb` and its commands
//   @variables@                          of policy/flags.def
//   @fields@, @steps@, @steering@        of policies: fields.def, release_steps.def, steer.def
std::string manual_page(const Help &curb, const std::string &text);

}  // namespace curb::cli
