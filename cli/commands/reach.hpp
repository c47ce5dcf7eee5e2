// Finds out before a program runs whether the loader will load libcurb.so into it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace curb::cli {

// Returns the reason, as a sentence. nullopt if the loader will load `library`, or if `file` cannot be read.
std::optional<std::string> why_out_of_reach(const std::string &file, const std::filesystem::path &library);

}  // namespace curb::cli
