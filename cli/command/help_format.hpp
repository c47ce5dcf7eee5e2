// How --help is laid out: 80 columns wide, whoever wrote the words and whichever version of CLI11 is built with. The
// man page and the shell's completion are made from what it prints.
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

// Paragraphs are filled anew. An indented line is a row: what stands behind two blanks in it goes into a column of its
// own, or below where there is no room.
std::string laid_out(std::string_view text);

}  // namespace curb::cli
