// Shows a recorded run: a page for browsers, a picture for papers, lines for a terminal, JSON for programs. Each
// function returns the whole text. Page and picture load nothing from elsewhere.
#pragma once

#include <string>
#include <string_view>

#include "page/picture.hpp"
#include "terminal/json.hpp"

namespace curb::cli {

// Escapes text from a trace for use between tags and in quoted attributes.
std::string markup(std::string_view text);
// Escapes JSON for use within <script>: the result has no '<'.
std::string within_script(std::string json);

// One process of a job.
struct Part {
    const Recording *recording = nullptr;
    Summary summary;
};
// `parts`: below the charts of the whole job each of its processes, on the same times.
std::string html_page(const Recording &recording, const Summary &summary, const std::vector<Part> &parts = {});
std::string svg_picture(const Recording &recording, const Summary &summary);
std::string text_report(const Recording &recording, const Summary &summary);
// Returns one line of JSON, such as tests/command/answers/report.json.
std::string report_json(const Recording &recording, const Summary &summary);
// Returns the members that `curb report` and `curb replay` share.
json::Members recording_json(const Recording &recording);

// Returns "--cap 5.92GiB, as the only limit, would have served it".
std::string served_by(const std::string &paste);
// Returns the recorded command, "python3 train.py", or the file's name if the trace has none.
std::string title_of(const Recording &recording);
// Returns "node7, pid 4711, begun 2026-03-01 12:30:00 UTC, 1 h 2 min, 520 events, curb 0.1.0".
std::string origin_of(const Recording &recording);
// Returns "cuda:0, NVIDIA H100 80GB HBM3, 80 GiB".
std::string heading_of(const GpuSummary &gpu);
// Returns the summary of the chart's GPU.
const GpuSummary &summary_of(const Summary &summary, const Chart &chart);

}  // namespace curb::cli
