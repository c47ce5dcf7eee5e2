// Suggestions for words that are neither a command nor an option of curb.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace curb::cli {

// Returns the text behind a wrong word of a command: "; did you mean --cap?". Empty if nothing is known to help.
// `command`: its whole name, "curb run". `names`: the commands or options that it has.
std::string hint_for(std::string_view command, std::string_view word, const std::vector<std::string> &names);

}  // namespace curb::cli
