// A recorded run for people to look at: a page for browsers, a picture for papers, lines for a terminal. Each is the
// whole text of what is to be written; nothing in them loads anything from elsewhere.
#pragma once

#include <string>
#include <string_view>

#include "picture.hpp"

namespace curb::cli {

// Text from a trace, harmless between tags and in quoted attributes.
std::string markup(std::string_view text);
// JSON, harmless within <script>: no '<' is left in it.
std::string within_script(std::string json);

std::string html_page(const Recording &recording, const Summary &summary);
std::string svg_picture(const Recording &recording, const Summary &summary);
std::string text_report(const Recording &recording, const Summary &summary);

// "python3 train.py", or what there is to say where the trace does not tell.
std::string title_of(const Recording &recording);
// "pid 4711, begun 2026-03-01 12:30:00 UTC, 1 h 2 min, curb 0.1.0"
std::string origin_of(const Recording &recording);
// "cuda:0, NVIDIA H100 80GB HBM3, 80 GiB"
std::string heading_of(const GpuSummary &gpu);

}  // namespace curb::cli
