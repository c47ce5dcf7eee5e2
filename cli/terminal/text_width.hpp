// How much room text takes on a terminal, and text that fits. All text is UTF-8.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "policy/words.hpp"

namespace curb::cli {

// Columns: ideographs and emoji take two, combining marks none. Bytes that are not UTF-8 count as one each.
std::size_t width_of(std::string_view text);
// At most so many columns; where something had to go it ends in "…".
std::string clipped(std::string_view text, std::size_t columns);
// Filled up with blanks to so many columns: behind it, or before it.
std::string padded(std::string text, std::size_t columns, bool right = false);
// Lines of at most so many columns, broken at blanks where there are some, the second and further ones indented.
std::string wrapped(std::string_view text, std::size_t columns, std::size_t indent);
// Lines of cells, the columns as wide as their widest cell. A line of one cell stands for itself.
std::string aligned(const std::vector<std::vector<std::string>> &lines);
using policy::plain;

}  // namespace curb::cli
