// What may stand at a place of a command line, for the completion of shells.
#pragma once

#include <string>
#include <vector>

#include "command/help.hpp"

namespace curb::cli {

// Stands for names of files.
inline constexpr const char *kFiles = ":files";

// Returns the values of an option or argument, each with a description or none. Asks no process, no driver and no
// NVML, which might make the shell wait. `shape`: its name in the help. `option`: "" for an argument.
std::vector<HelpRow> values_of(const std::string &shape, const std::string &option, const std::string &command);

}  // namespace curb::cli
