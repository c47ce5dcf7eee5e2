// A recorded run as shapes: what is held by kind over time, the limits, and the marks. Pure; what pages and pictures
// for papers have in common.
//
// Keeps as many of millions of events as a picture can show: of each column of time the first, the last, the highest
// and the lowest, so that no peak is lost. Marks of one column become one, with their number.
#pragma once

#include <string>
#include <vector>

#include "summary.hpp"

namespace curb::cli {

struct HeldSample {
    std::uint64_t ns = 0;
    policy::Bytes held = 0;
    policy::ByKind kinds{};
};
struct LimitSample {
    std::uint64_t ns = 0;
    policy::Bytes limit = policy::kUnbounded;
};
// The marks of one column.
struct Mark {
    std::uint64_t ns = 0, ended_ns = 0;  // of the largest of them; ended_ns: of what lasts
    std::size_t count = 0;
    std::int64_t bytes = 0;    // together
    policy::Bytes height = 0;  // where to draw it
    std::string text;          // its description, on one line
};

struct Chart {
    int gpu = 0;
    std::vector<policy::Kind> kinds;  // those that there are, in the order in which they are stacked
    std::vector<HeldSample> samples;  // each holds until the next
    std::vector<LimitSample> cap, allowance;
    std::vector<Mark> refusals, waits, releases;
    std::vector<Mark> absences;  // of the process: its memory was in host memory
    policy::Bytes top = 0;       // of the picture
    bool cap_above = false;      // the cap is far above what is held, and not drawn
};

struct Picture {
    std::uint64_t begin_ns = 0, end_ns = 1;
    std::vector<Chart> charts;
};

Picture draw(const Recording &recording, const Summary &summary, std::size_t columns);

// Places on the canvas: x from 0 at the beginning to `width` at the end, y from 0 at the top down to `height`.
struct Canvas {
    std::uint64_t begin_ns = 0, end_ns = 1;
    policy::Bytes top = 1;
    double left = 0, upper = 0, width = 1, height = 1;
    int decimals = 0;
    [[nodiscard]] double x(std::uint64_t ns) const noexcept;
    [[nodiscard]] double y(policy::Bytes bytes) const noexcept;
    // "H12.5": one step of SVG path data.
    [[nodiscard]] std::string path(char command, double value) const;
};
// SVG path data of the area under the first `layers` kinds of the stack.
std::string area(const Chart &chart, std::size_t layers, const Canvas &canvas);
// SVG path data of the times when the process was out of its GPUs, from top to bottom.
std::string bands(const std::vector<Mark> &absences, const Canvas &canvas);
// SVG path data of a limit, where there is one.
std::string line(const std::vector<LimitSample> &samples, const Canvas &canvas);

// Heights at which to draw a line, from 0 on.
std::vector<policy::Bytes> height_ticks(policy::Bytes top);
// Times since `begin_ns`, in ns, with what to write there.
std::vector<std::pair<std::uint64_t, std::string>> time_ticks(std::uint64_t span_ns, std::size_t most);

// Colour-blind readers can tell them apart (Okabe and Ito). The driver's own kinds are grey.
const char *colour_of(policy::Kind kind) noexcept;

}  // namespace curb::cli
