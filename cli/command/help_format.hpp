// Lays out --help in 80 columns, the same with every version of CLI11. scripts/documents and completion/curb.bash read
// the result.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>

namespace curb::cli {

// A description that ends in ": curb …" names its own usage, where CLI11 does not know all of it.
class HelpFormat : public CLI::FormatterBase {
  public:
    std::string make_help(const CLI::App *app, std::string name, CLI::AppFormatMode mode) const override;
};

// Fills paragraphs to the width. An indented line is a row of two columns, separated by two blanks. The second column
// starts on the next line if the first leaves too little room.
std::string laid_out(std::string_view text);

}  // namespace curb::cli
