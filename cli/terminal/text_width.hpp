// Measures and fits text for a terminal; times as text. All text is UTF-8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <string>
#include <string_view>
#include <vector>

#include "policy/values/words.hpp"

namespace curb::cli {

// Returns the width in columns: ideographs and emoji take two, combining marks none, malformed bytes one each.
std::size_t width_of(std::string_view text);
// Cuts the text to `columns`. A text that was cut ends in "…"; without `unicode` in "+", as in ps and top of procps.
std::string clipped(std::string_view text, std::size_t columns, bool unicode = true);
// Pads the text with blanks to `columns`. `right`: aligns it to the right.
std::string padded(std::string text, std::size_t columns, bool right = false);
// Wraps the text to `columns`, at blanks where it has some. Indents all lines but the first, of which `taken` columns
// are in use already.
std::string wrapped(std::string_view text, std::size_t columns, std::size_t indent, std::size_t taken = 0);
// Lays out lines of cells as a table. A line of one cell, or a cell wider than 36 columns, does not widen its column.
std::string aligned(const std::vector<std::vector<std::string>> &lines);
// Returns "1 event", "2 events".
std::string counted(std::uint64_t number, const std::string &one);
// Formats a time by the local clock, as strftime does.
std::string local_time(std::time_t seconds, const char *format);
using policy::plain;

}  // namespace curb::cli
