// Measures and fits text for a terminal; times as text. All text is UTF-8.
#pragma once

#include <cstddef>
#include <ctime>
#include <string>
#include <string_view>
#include <vector>

#include "policy/words.hpp"

namespace curb::cli {

// Returns the columns of the text: ideographs and emoji take two, combining marks none, malformed bytes one each.
std::size_t width_of(std::string_view text);
// Cuts the text to so many columns; a text that was cut ends in "…".
std::string clipped(std::string_view text, std::size_t columns);
// Pads the text with blanks to so many columns: behind it, or with `right` before it.
std::string padded(std::string text, std::size_t columns, bool right = false);
// Wraps the text to so many columns, at blanks where it has some. The second and further lines are indented. `taken`:
// columns of the first line that are taken already.
std::string wrapped(std::string_view text, std::size_t columns, std::size_t indent, std::size_t taken = 0);
// Joins lines of cells to a table; each column is as wide as its widest cell. A line of one cell does not count.
std::string aligned(const std::vector<std::vector<std::string>> &lines);
// Formats a time by the local clock, as strftime does.
std::string local_time(std::time_t seconds, const char *format);
using policy::plain;

}  // namespace curb::cli
