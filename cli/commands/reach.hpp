// Whether libcurb.so can come into a program, found out before the program runs.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace curb::cli {

// Returns why the loader will not load `library` into the program in `file`, as a sentence; nothing if it will, or if
// the file cannot be read.
std::optional<std::string> why_out_of_reach(const std::string &file, const std::filesystem::path &library);

}  // namespace curb::cli
