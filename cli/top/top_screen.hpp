// The screen of `curb top`, made of a View and of the user's choices. Pure: the clock and the window's size are
// arguments.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "machine/view.hpp"
#include "terminal/terminal.hpp"

namespace curb::cli {

struct Span {
    std::string text;
    Ink ink = Ink::plain;
};
using ScreenLine = std::vector<Span>;

enum class Sort { held, cap, pid, user, command };
inline constexpr int kSorts = 5;

// A process on a GPU, or on none.
struct TopRow {
    std::size_t process = 0;       // index into View::processes
    const ViewGpu *gpu = nullptr;  // null: it holds nothing
    const ViewUse *use = nullptr;  // null: it holds nothing
    policy::Bytes held = 0;        // by its own books, else by NVML
    std::optional<policy::Bytes> cap;
};

// The user's choices, and the history of the figures.
struct TopState {
    Sort sort = Sort::held;
    std::string filter;     // shows rows whose command, user or pid contains it, ignoring case
    std::size_t at = 0;     // the selected row
    std::size_t first = 0;  // the first row that is shown
    std::string message;    // for the last line; empty: it shows the keys
    bool unicode = true;    // false: the locale is not UTF-8

    using History = std::deque<policy::Bytes>;
    std::map<std::string, History> used;                  // by the GPU's UUID
    std::map<std::pair<int, std::string>, History> held;  // by pid and UUID
};

// Adds the figures of the view to the histories, and removes those of processes and GPUs that are gone.
void remember(TopState &state, const View &view);
// Returns the rows that match the filter, in the chosen order.
std::vector<TopRow> top_rows(const View &view, const TopState &state);
// Returns at most `height` lines of at most `width` columns. Moves state.at and state.first to existing rows.
std::vector<ScreenLine> top_screen(const View &view, TopState &state, std::size_t width, std::size_t height,
                                   control::UnixMs now);

}  // namespace curb::cli
