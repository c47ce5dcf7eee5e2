// The screen of `curb top`: lines of a fixed size, made of a view of the machine and of the typed keys. Pure: takes
// the clock, the terminal and the processes as arguments.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "view.hpp"

namespace curb::cli {

enum class Paint { plain, bold, dim, red, green, yellow, reverse };
struct Span {
    std::string text;
    Paint paint = Paint::plain;
};
using ScreenLine = std::vector<Span>;

enum class Sort { held, cap, pid, user, command };
inline constexpr int kSorts = 5;
const char *sort_name(Sort sort);

// A process on a GPU, or on none.
struct TopRow {
    std::size_t process = 0;       // index into View::processes
    const ViewGpu *gpu = nullptr;  // null: it holds nothing
    const ViewUse *use = nullptr;  // null: it holds nothing
    policy::Bytes held = 0;        // by its own books, else by NVML
    std::optional<policy::Bytes> cap;
};

// What the user has chosen, and what was seen before.
struct TopState {
    Sort sort = Sort::held;
    std::string filter;     // a part of the command, the user or the pid, in any case
    std::size_t at = 0;     // the selected row
    std::size_t first = 0;  // the first row that is shown
    std::string message;    // of the last line; empty: the keys
    bool unicode = true;    // false: the locale has ASCII alone

    using History = std::deque<policy::Bytes>;
    std::map<std::string, History> used;                  // by the GPU's UUID
    std::map<std::pair<int, std::string>, History> held;  // by pid and UUID
};

// Adds the view to the histories, and forgets processes and GPUs that are gone.
void remember(TopState &state, const View &view);
// Returns the rows in the order of the state, without those that its filter leaves out.
std::vector<TopRow> top_rows(const View &view, const TopState &state);
// Returns `height` lines of `width` columns at most. Moves state.at and state.first to rows that are there.
std::vector<ScreenLine> top_screen(const View &view, TopState &state, std::size_t width, std::size_t height,
                                   control::UnixMs now);

}  // namespace curb::cli
