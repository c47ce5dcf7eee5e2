// Where the answer goes: a terminal of some size, or not one.
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
// Of stdout. COLUMNS and LINES stand for a size that the terminal does not tell, COLUMNS also for a stdout that is no
// terminal. NO_COLOR and TERM=dumb keep it plain.
Screen screen_of_stdout();

enum class Ink { plain, bold, dim, red, yellow, green };
std::string inked(const Screen &screen, Ink ink, std::string_view text);

// All of `text`. False: nobody reads it any more (a closed pipe), which is no failure of ours; anything else that goes
// wrong throws std::system_error.
bool print(std::string_view text);

// Each line of it on stderr, behind "curb: ".
void complain(std::string_view message);

}  // namespace curb::cli
