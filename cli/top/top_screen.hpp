// The screen of `curb top`, made of a View and of the user's choices. Pure: the clock and the window's size are
// arguments.
#pragma once

#include <array>
#include <chrono>
#include <deque>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "machine/view.hpp"
#include "terminal/terminal.hpp"

namespace curb::cli {

struct Span {
    std::string text;
    Ink ink = Ink::plain;
    int key = 0;  // a click on it presses this key; 0: none
};
using ScreenLine = std::vector<Span>;
// Returns the key that a click on this column of the line presses. 0 if there is none.
int key_at(const ScreenLine &line, std::size_t column);

enum class Sort { held, cap, pid, user, command };
inline constexpr int kSorts = 5;

// A process on a GPU, or on none.
struct TopRow {
    std::size_t process = 0;       // index into View::processes
    const ViewGpu *gpu = nullptr;  // null: it holds nothing
    const ViewUse *use = nullptr;  // null: it holds nothing
    policy::Bytes held = 0;        // by its own books, else by what it posts or NVML
    std::optional<policy::Bytes> cap;
};

// The user's choices, and the history of the figures.
struct TopState {
    Sort sort = Sort::held;
    std::string filter;     // shows rows whose command, user or pid contains it, ignoring case
    std::size_t at = 0;     // the selected row
    std::size_t first = 0;  // the first row that is shown
    std::size_t line = 0;   // where on the screen it stands
    std::string message;    // for the last line; empty: it shows the keys
    bool unicode = true;    // false: the locale is not UTF-8
    bool helps = false;     // shows the help instead of the processes
    bool read_only = false;
    std::chrono::milliseconds every{1000};  // between two polls

    using History = std::deque<policy::Bytes>;
    using UseKey = std::tuple<std::uint64_t, int, std::string>;  // namespace_of(), pid, the GPU's UUID
    std::map<std::string, History> used;                         // by the GPU's UUID
    std::map<UseKey, History> held;
};

// Adds the figures of the view to the histories, and removes those of processes and GPUs that are gone.
void remember(TopState &state, const View &view);
// Moves state.at to the row of the process that it selects in the older view, on the same GPU if it is still there.
void keep_selected(TopState &state, const View &older, const View &newer);
// Returns the rows that match the filter, in the chosen order.
std::vector<TopRow> top_rows(const View &view, const TopState &state);
// Returns at most `height` lines of at most `width` columns. Moves state.at and state.first to existing rows, and sets
// state.line.
std::vector<ScreenLine> top_screen(const View &view, TopState &state, std::size_t width, std::size_t height,
                                   control::UnixMs now);

// The help: keys, bars, columns and states.
std::vector<ScreenLine> top_help(const TopState &state);
// The signs of the bars.
ScreenLine legend_of(bool unicode);
// Returns "0.5 s", "2 s", "1 min".
std::string interval_text(std::chrono::milliseconds every);
// The names of Sort, in its order.
extern const std::array<const char *, kSorts> kSortNames;

}  // namespace curb::cli
