// Standard output: a terminal of some size, or not a terminal.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace curb::cli {

// Returns the value of an environment variable. Empty if it is unset.
std::string variable(const char *name);

// Returns the folders of a PATH in their order. An empty one stands for the present folder.
std::vector<std::string> folders_of(std::string_view path);
// Finds the file of a program, as execvp does; `path`: the value of PATH. Returns nullopt if it cannot be executed.
std::optional<std::string> find_program(const std::string &name, std::string_view path);

// Quotes the word for a shell, if it needs quotes.
std::string shell_quoted(const std::string &word);
// Runs a command line of sh(1). Returns its exit status, -1 if it was not run or was ended by a signal, and its output.
struct Ended {
    int status = -1;
    std::string output;
};
Ended run_shell(const std::string &line);

struct Screen {
    std::optional<std::size_t> width;   // columns; nullopt: no limit
    std::optional<std::size_t> height;  // lines
    bool colour = false;
    bool redraws = false;  // the terminal obeys escape sequences
    bool unicode = true;   // it shows UTF-8
};
// Returns the size of stdout. Takes the width from COLUMNS if the terminal does not report it or stdout is not a
// terminal. It has colours if wants_colour(), by itself on a terminal that obeys escape sequences.
Screen screen_of_stdout();
// True if LC_ALL, LC_CTYPE or LANG, the first of them that is set, names UTF-8. The locale need not be installed.
bool has_utf8_locale();
// Takes the value of --color: auto, always or never. False if it is none of them.
bool use_colour(std::string_view when);
// True if the output is to have colours: by --color, else by FORCE_COLOR (0: none), else `by_itself` without NO_COLOR.
bool wants_colour(bool by_itself);

// The SGR codes of ECMA-48.
enum class Ink { plain = 0, bold = 1, dim = 2, reverse = 7, red = 31, green = 32, yellow = 33 };
std::string inked(const Screen &screen, Ink ink, std::string_view text);

// Prints all of `text`. False if the reader has closed the pipe, which is not a failure of curb. Throws
// std::system_error on any other error.
bool print(std::string_view text);
inline bool print_line(const std::string &text) { return print(text + "\n"); }

// Writes all of `text`, whatever signals come. False if that fails; errno says why.
bool write_all(int file, std::string_view text);

// Puts `head` before each line and makes control characters visible.
std::string plain_lines(std::string_view text, std::string_view head);
// Prints text that may contain strings from other programs: control characters do not reach the terminal.
bool print_text(std::string_view text);

// Prints the lines of an answer that belong on stderr, such as the errors of a policy.
void print_error(std::string_view text);

}  // namespace curb::cli
