// A recorded run as shapes: the held memory by kind over time, the limits, and the marks. Shared by pages and pictures.
// Pure.
//
// A picture cannot show millions of events. So it keeps the first, last, highest and lowest sample of each column of
// time, and no peak is lost. Marks of one column become one, with their number.
#pragma once

#include <string>
#include <vector>

#include "trace/summary.hpp"

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
    std::uint64_t ns = 0, ended_ns = 0;  // the time of the largest mark; the latest end
    std::size_t count = 0;
    std::int64_t bytes = 0;    // sum
    policy::Bytes height = 0;  // where to draw a refusal
    std::string text;          // its description, on one line
};

struct Chart {
    int gpu = 0;
    std::vector<policy::Kind> kinds;  // those that occur, from bottom to top
    std::vector<HeldSample> samples;  // each is valid until the next
    std::vector<LimitSample> cap, allowance;
    std::vector<Mark> refusals, waits, releases;
    std::vector<Mark> absences;  // of the process: its memory was in host memory
    policy::Bytes top = 0;       // of the picture
    bool cap_above = false;      // the cap is far above the peak, and not drawn
};

struct Picture {
    std::uint64_t begin_ns = 0, end_ns = 1;
    std::vector<Chart> charts;  // of the GPUs that are used
};

Picture draw(const Recording &recording, const Summary &summary, std::size_t columns);
// Returns the charts of one process of a job, on the times of the job's picture. `offset_ns`: from the beginning of the
// job's trace to that of the process's own.
std::vector<Chart> draw_part(const Recording &recording, const Summary &summary, std::size_t columns,
                             std::uint64_t offset_ns);

// Maps times to x, from `left` to `left + width`, and sizes to y, from `upper + height` at 0 up to `upper` at `top`.
struct Canvas {
    std::uint64_t begin_ns = 0, end_ns = 1;
    policy::Bytes top = 1;
    double left = 0, upper = 0, width = 1, height = 1;
    int decimals = 0;
    [[nodiscard]] double x(std::uint64_t ns) const noexcept;
    [[nodiscard]] double y(policy::Bytes bytes) const noexcept;
    // Returns one command of SVG path data: "H12.5".
    [[nodiscard]] std::string path(char command, double value) const;
};
// Returns the area under the first `layers` kinds of the stack, as SVG path data.
std::string area(const Chart &chart, std::size_t layers, const Canvas &canvas);
// Returns a band from top to bottom for each absence, as SVG path data.
std::string bands(const std::vector<Mark> &absences, const Canvas &canvas);
// Returns the line of a limit, where there is one, as SVG path data.
std::string line(const std::vector<LimitSample> &samples, const Canvas &canvas);

// Returns the heights at which to draw a line, from 0 on.
std::vector<policy::Bytes> height_ticks(policy::Bytes top);
// Returns round times from `begin_ns` to `end_ns`, at most so many, with their labels: times of day, as in the tables.
// `local_ns`: local_begin_ns(); `days`: has_days().
std::vector<std::pair<std::uint64_t, std::string>> time_ticks(std::uint64_t begin_ns, std::uint64_t end_ns,
                                                              std::size_t most, std::int64_t local_ns, bool days);

// Returns a colour that colour-blind readers can tell apart (Okabe and Ito). The driver's own kinds are greys, each of
// at least 1.7 times the contrast of the next.
const char *colour_of(policy::Kind kind) noexcept;

}  // namespace curb::cli
