// Standard output: a terminal of some size, or not a terminal.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace curb::cli {

struct Screen {
    std::optional<std::size_t> width;   // columns; none: as wide as it likes
    std::optional<std::size_t> height;  // lines
    bool colour = false;
};
// Returns the size of stdout. COLUMNS and LINES replace a size that the terminal does not report; COLUMNS also applies
// if stdout is not a terminal. NO_COLOR and TERM=dumb turn colours off.
Screen screen_of_stdout();

enum class Ink { plain, bold, dim, red, yellow, green };
std::string inked(const Screen &screen, Ink ink, std::string_view text);

// Prints all of `text`. Returns false if the reader has closed the pipe, which is not a failure of curb. Throws
// std::system_error on any other error.
bool print(std::string_view text);

// Prints each line of the message on stderr, behind "curb: ".
void complain(std::string_view message);

}  // namespace curb::cli
