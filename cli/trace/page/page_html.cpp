// The page: the picture is an inline SVG that grows with the window. The text around it is HTML, so that it keeps its
// size. Marks are buttons, so that they can be focused by keys.

#include <algorithm>
#include <span>

#include "page/pages.hpp"
#include "policy/values/words.hpp"
#include "terminal/format.hpp"
#include "terminal/text_width.hpp"

namespace curb::cli {

extern const char *const kPageStyle;
extern const char *const kPageScript;

namespace {

constexpr std::size_t kHtmlColumns = 1200, kPartColumns = 400;
constexpr std::size_t kMostRows = 200;
constexpr Canvas kFullWidth{0, 1, 1, 0, 0, 100'000, 10'000, 0};

using Cells = std::vector<std::string>;

std::string percent(double part) { return fmt::format("{:.3f}%", part * 100); }

std::string exact(policy::Bytes bytes) {
    return fmt::format(R"(<span title="{} bytes">{}</span>)", bytes, policy::format_human(bytes));
}
std::string exact(std::int64_t bytes) {
    return fmt::format(R"(<span title="{} bytes">{}</span>)", bytes, control::size_text(bytes));
}

// Adds `title` and a table of the first kMostRows values, if there are any. `row` returns the markup of a value's
// cells. A heading with a leading '#' is of a column of numbers. `more`: a remark on the values that are left out.
void add_table(std::string &out, std::string_view title, const Cells &headings, const auto &values, auto row,
               std::string_view more = "") {
    if (values.empty()) return;
    const auto cell = [&](const char *tag, std::size_t column, std::string_view text) {
        const char *of_numbers = headings[column].starts_with('#') ? " class=\"number\"" : "";
        out += fmt::format("<{0}{1}>{2}</{0}>", tag, of_numbers, text);
    };
    out.append(title).append("\n<div class=\"wide\"><table><thead><tr>");
    for (std::size_t i = 0; i < headings.size(); ++i)
        cell("th", i, std::string_view(headings[i]).substr(headings[i].starts_with('#')));
    out += "</tr></thead><tbody>\n";
    for (const auto &value : std::span(values).first(std::min(values.size(), kMostRows))) {
        out += "<tr>";
        const Cells cells = row(value);
        for (std::size_t i = 0; i < cells.size(); ++i) cell("td", i, cells[i]);
        out += "</tr>\n";
    }
    out += "</tbody></table></div>\n";
    if (values.size() > kMostRows)
        out += fmt::format("<p class=\"note\">and {} more{}.</p>\n", values.size() - kMostRows, more);
}

std::string mark(const Mark &mark, const Picture &picture, const Chart &chart, std::string_view name,
                 const char *shape) {
    const double span = static_cast<double>(picture.end_ns - picture.begin_ns);
    const auto part = [&](std::uint64_t ns) { return static_cast<double>(ns - std::min(ns, picture.begin_ns)) / span; };
    std::string end, style = "left:" + percent(part(mark.ns));
    if (name == "wait" || name == "out") {
        end = fmt::format(" data-end=\"{:.7f}\"", part(mark.ended_ns));
        style += ";width:" + percent(part(mark.ended_ns) - part(mark.ns));
    } else if (name == "refuse") {
        const double high = static_cast<double>(mark.height) / static_cast<double>(chart.top);
        style += ";top:" + percent(1 - std::min(high, 0.94));
    }
    return fmt::format(
        R"(<button type="button" class="mark {}" data-x="{:.7f}" data-count="{}"{} style="{}" title="{}")"
        R"( aria-label="{}">{}</button>)"
        "\n",
        name, part(mark.ns), mark.count, end, style, markup(mark.text), markup(mark.text), shape);
}

constexpr const char *kDownShape = R"(<svg viewBox="-8 -8 16 16" aria-hidden="true"><path d="M-7-6H7L0 7Z"/></svg>)";
constexpr const char *kDiamondShape =
    R"(<svg viewBox="-8 -8 16 16" aria-hidden="true"><path d="M0-7L6 0 0 7-6 0Z"/></svg>)";

void add_legend(std::string &out, const Chart &chart) {
    out += "<ul class=\"legend\">";
    for (const policy::Kind kind : chart.kinds)
        out += fmt::format(R"(<li><span class="swatch" style="background:{}"></span>{}</li>)", colour_of(kind),
                           policy::kind_text(kind));
    if (!chart.cap.empty()) out += R"(<li><span class="stroke"></span>cap</li>)";
    if (!chart.allowance.empty()) out += R"(<li><span class="stroke allowance"></span>allowance</li>)";
    const auto symbol = [&](const std::vector<Mark> &marks, const char *what, const char *shape, const char *words) {
        if (marks.empty()) return;
        out += fmt::format(
            R"(<li><span class="{}" style="transform:none;position:static;width:14px;height:14px">{}</span>{}</li>)",
            what, shape, words);
    };
    symbol(chart.refusals, "refuse", kDownShape, "refused");
    symbol(chart.releases, "release", kDiamondShape, "released");
    if (!chart.waits.empty()) out += R"(<li><span class="wait" style="width:18px"></span>waited for room</li>)";
    if (!chart.absences.empty()) out += R"(<li><span class="out" style="width:18px"></span>in host memory</li>)";
    out += "</ul>\n";
}

// Where a page's charts begin and end, and what their times are called.
struct Axis {
    Picture picture;  // without charts: the times alone
    std::int64_t local_ns = 0;
    bool days = false;
};

void add_plot(std::string &out, const Axis &axis, const Chart &chart, std::string_view size) {
    const Picture &picture = axis.picture;
    Canvas canvas = kFullWidth;
    canvas.begin_ns = picture.begin_ns;
    canvas.end_ns = picture.end_ns;
    canvas.top = chart.top;
    out += fmt::format("<div class=\"chart{}\">\n<div class=\"heights\">", size);
    const auto heights = height_ticks(chart.top);
    for (const policy::Bytes height : heights)
        out += fmt::format(R"(<span style="top:{}">{}</span>)", percent(canvas.y(height) / canvas.height),
                           policy::format_human(height));
    out += fmt::format(R"(</div>
<div class="plot" tabindex="0" role="group" aria-label="held memory of {} over time; arrow keys move, + and - zoom">
<svg viewBox="0 0 100000 10000" preserveAspectRatio="none" aria-hidden="true">
)",
                       gpu_name(chart.gpu));
    for (const policy::Bytes height : heights)
        out += fmt::format(R"(<path class="gridline" d="M0 {}H100000"/>)", static_cast<int>(canvas.y(height)));
    for (std::size_t layers = chart.kinds.size(); layers > 0; --layers)
        out += fmt::format("\n<path class=\"layer\" fill=\"{}\" d=\"{}\"/>", colour_of(chart.kinds[layers - 1]),
                           area(chart, layers, canvas));
    if (const std::string path = bands(chart.absences, canvas); !path.empty())
        out += fmt::format("\n<path class=\"band\" d=\"{}\"/>", path);
    if (const std::string path = line(chart.allowance, canvas); !path.empty())
        out += fmt::format("\n<path class=\"allowance-line\" d=\"{}\"/>", path);
    if (const std::string path = line(chart.cap, canvas); !path.empty())
        out += fmt::format("\n<path class=\"cap\" d=\"{}\"/>", path);
    out += "\n</svg>\n<div class=\"marks\">\n";
    for (const Mark &one : chart.absences) out += mark(one, picture, chart, "out", "");
    for (const Mark &one : chart.waits) out += mark(one, picture, chart, "wait", "");
    for (const Mark &one : chart.releases) out += mark(one, picture, chart, "release", kDiamondShape);
    for (const Mark &one : chart.refusals) out += mark(one, picture, chart, "refuse", kDownShape);
    out += "</div>\n<div class=\"drag\"></div><div class=\"cursor\"></div>\n</div>\n<div class=\"times\">";
    const double span = static_cast<double>(picture.end_ns - picture.begin_ns);
    for (const auto &[ns, text] : time_ticks(picture.begin_ns, picture.end_ns, 8, axis.local_ns, axis.days))
        if (const double part = static_cast<double>(ns - picture.begin_ns) / span; part <= 0.97)
            out += fmt::format(R"(<span style="left:{}">{}</span>)", percent(part), text);
    out += R"(</div>
</div>
<p class="readout" aria-live="polite">Point at the picture, or use the arrow keys in it, for the figures of a moment; drag to zoom, double click or Escape for the whole.</p>
)";
}

// Returns the markup of a call stack: the first calls, and the others folded.
std::string calls(const std::vector<std::string> &all) {
    constexpr std::size_t kShown = 4;
    const auto line = [](const std::string &one) { return "<code>" + markup(one) + "</code>"; };
    const auto first = std::span(all).first(std::min(kShown, all.size())), rest = std::span(all).subspan(first.size());
    std::string out = "<div class=\"calls\">" + policy::joined(first, "<br>", line);
    if (!rest.empty())
        out += fmt::format("<details><summary>{} more</summary>{}</details>", rest.size(),
                           policy::joined(rest, "<br>", line));
    return out + "</div>";
}

void add_tables(std::string &out, const Recording &recording, const GpuSummary &gpu) {
    add_table(
        out, "<h3>Refused</h3>", {"Time", "#Asked for", "Kind", "Hit", "#Held then", "#Limit", "#Thread"}, gpu.refusals,
        [&](const Moment *one) -> Cells {
            const auto limit = one->limit_hit();
            return {clock_text(recording, one->ns), exact(one->bytes), policy::kind_text(one->kind),
                    policy::limit_text(one->why()), exact(one->held),  limit ? exact(*limit) : "",
                    std::to_string(one->thread)};
        },
        "; curb report --json lists more of them");
    add_table(out, "<h3>Largest allocations at the peak</h3>", {"#Size", "Kind", "Since", "Pointer", "#Thread"},
              gpu.held_at_peak, [&](const Moment *one) -> Cells {
                  return {exact(one->bytes), policy::kind_text(one->kind), clock_text(recording, one->ns),
                          "<code>" + pointer_text(one->pointer) + "</code>", std::to_string(one->thread)};
              });
    add_table(out, "<h3>Who allocated the memory at the peak</h3>", {"#Size", "#Allocations", "Calls, innermost first"},
              gpu.callers_at_peak, [&](const Caller &one) -> Cells {
                  return {exact(one.bytes), std::to_string(one.count),
                          one.stack ? calls(calls_of(recording.text(*one.stack))) : "not recorded"};
              });
    add_table(out, "<h3>Largest requests</h3>", {"#Size", "Kind", "Time", "Result"}, gpu.requests,
              [&](const Moment *one) -> Cells {
                  return {exact(one->bytes), policy::kind_text(one->kind), clock_text(recording, one->ns),
                          one->what == What::refuse ? "refused" : "granted"};
              });
}

void add_releases(std::string &out, const Recording &recording, const Summary &summary) {
    const auto step = [](const auto &part) { return policy::step_name(part.first) + (" " + exact(part.second)); };
    add_table(out, "<h2>Released</h2>", {"Time", "Asked for by", "#Came back", "Steps", "#Took"}, summary.releases,
              [&](const Release &one) -> Cells {
                  return {clock_text(recording, one.began_ns), markup(one.trigger), exact(one.bytes),
                          policy::joined(one.steps, ", ", step), span_text(one.ended_ns - one.began_ns)};
              });
}

void add_absences(std::string &out, const Recording &recording, const Summary &summary) {
    add_table(out, "<h2>Out of its GPUs</h2>", {"Time", "By", "#In host memory", "#For", "#Way out took", "Way back"},
              summary.absences, [&](const Absence &one) -> Cells {
                  return {clock_text(recording, one.began_ns),
                          one.how.empty() ? "not known" : markup(cause_text(one)),
                          exact(one.bytes),
                          span_text(one.ended_ns - one.began_ns),
                          one.out_ns == 0 ? "not known" : span_text(one.out_ns),
                          one.wake_ns ? way_back_text(one) : "out at the end"};
              });
}

// ---- the data for page.js: times in us, sizes in bytes ----

std::string microseconds(std::uint64_t ns) { return fmt::format("{}.{:03}", ns / 1000, ns % 1000); }
std::string times(const auto &samples) {
    return json::list(samples, [](const auto &one) { return microseconds(one.ns); });
}
std::string limits(const std::vector<LimitSample> &samples) {
    const auto limit = [](const LimitSample &one) { return json::Value(bounded(one.limit)).json(); };
    return json::object({{"t", times(samples)}, {"v", json::list(samples, limit)}});
}

// A chart and the name of its section in the page.
struct Placed {
    std::string name;
    Chart chart;
};

std::string data_of(const Axis &axis, const std::vector<Placed> &charts) {
    const auto chart_data = [](const Placed &placed) {
        const Chart &chart = placed.chart;
        const auto kind_data = [&](policy::Kind kind) {
            const auto bytes = [=](const HeldSample &one) {
                return std::to_string(one.kinds[static_cast<std::size_t>(kind)]);
            };
            return json::object(
                {{"name", json::text(policy::kind_text(kind))}, {"v", json::list(chart.samples, bytes)}});
        };
        const auto held = [](const HeldSample &one) { return std::to_string(one.held); };
        return json::object({{"name", json::text(placed.name)},
                             {"t", times(chart.samples)},
                             {"held", json::list(chart.samples, held)},
                             {"kinds", json::list(chart.kinds, kind_data)},
                             {"cap", limits(chart.cap)},
                             {"allowance", limits(chart.allowance)}});
    };
    const std::int64_t local_ms = axis.local_ns / 1'000'000;
    return json::object({{"begin", microseconds(axis.picture.begin_ns)},
                         {"end", microseconds(axis.picture.end_ns)},
                         {"clock", fmt::format("{}.{:03}", local_ms / 1000, local_ms % 1000)},
                         {"days", axis.days},
                         {"gpus", json::list(charts, chart_data)}});
}

void add_summary(std::string &out, const Recording &recording, const Summary &summary) {
    out += "<ul class=\"summary\">";
    for (const std::string &one : sentences(recording, summary)) out += "<li>" + markup(one) + "</li>";
    out += "</ul>\n";
}

// Adds the processes of a job: what each held, on the times of the job.
void add_parts(std::string &out, const Axis &axis, const std::vector<Part> &parts, std::vector<Placed> &charts) {
    if (!parts.empty()) out += "<h2>Each process</h2>\n";
    for (const Part &part : parts) {
        const Recording &recording = *part.recording;
        out += fmt::format("<h3 class=\"part\">{}</h3>\n<p class=\"origin\">{}</p>\n", markup(recording.name),
                           markup(title_of(recording) + "; " + origin_of(recording)));
        add_summary(out, recording, part.summary);
        const std::int64_t offset = std::max<std::int64_t>(local_begin_ns(recording) - axis.local_ns, 0);
        for (Chart &chart : draw_part(recording, part.summary, kPartColumns, static_cast<std::uint64_t>(offset))) {
            const std::string name = std::to_string(charts.size());
            out += fmt::format("<section data-gpu=\"{}\">\n<p class=\"note\">{}</p>\n", name,
                               markup(heading_of(summary_of(part.summary, chart))));
            add_legend(out, chart);
            add_plot(out, axis, chart, " low");
            out += "</section>\n";
            charts.push_back({name, std::move(chart)});
        }
    }
}

}  // namespace

std::string markup(std::string_view text) {
    std::string out;
    for (const char c : policy::plain(text)) {
        switch (c) {
            case '&': out += "&amp;"; break;
            case '<': out += "&lt;"; break;
            case '>': out += "&gt;"; break;
            case '"': out += "&quot;"; break;
            case '\'': out += "&#39;"; break;
            default: out += c;
        }
    }
    return out;
}

std::string within_script(std::string json) {
    for (std::size_t at = 0; (at = json.find('<', at)) != std::string::npos; at += 6) json.replace(at, 1, "\\u003c");
    return json;
}

std::string html_page(const Recording &recording, const Summary &summary, const std::vector<Part> &parts) {
    Picture picture = draw(recording, summary, kHtmlColumns);
    const Axis axis{{picture.begin_ns, picture.end_ns, {}}, local_begin_ns(recording), has_days(recording)};
    const std::string title = markup(title_of(recording));
    std::string out = fmt::format(R"(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
<title>{} – GPU memory</title>
<style>
{}</style>
</head>
<body>
<h1>{}</h1>
<p class="origin">{}</p>
)",
                                  title, kPageStyle, title, markup(origin_of(recording)));
    if (!recording.missing.empty()) {
        out += R"(<div class="missing" role="note"><p><strong>Not all of the run is here.</strong></p>)";
        for (const std::string &one : recording.missing) out += "<p>" + markup(one) + "</p>";
        out += "</div>\n";
    }
    add_summary(out, recording, summary);
    if (picture.charts.empty()) out += "<p>No memory of a GPU was used.</p>\n";
    std::vector<Placed> charts;
    for (Chart &chart : picture.charts) {
        const GpuSummary &gpu = summary_of(summary, chart);
        out += fmt::format("<section data-gpu=\"{}\">\n<h2>{}</h2>\n", charts.size(), markup(heading_of(gpu)));
        add_legend(out, chart);
        if (chart.cap_above && gpu.cap)
            out += fmt::format("<p class=\"note\">The cap, {}, is far above the picture.</p>\n",
                               policy::format_human(*gpu.cap));
        add_plot(out, axis, chart, "");
        if (gpu.smallest_cap)
            out += fmt::format("<p class=\"note\">Smallest cap: {}.</p>\n", markup(served_by(gpu.paste)));
        if (gpu.live != 0)
            out += fmt::format("<p class=\"note\">Not freed before the end: {}, {}.</p>\n",
                               counted(gpu.live, "allocation"), policy::format_human(gpu.live_bytes));
        add_tables(out, recording, gpu);
        out += "</section>\n";
        charts.push_back({std::to_string(charts.size()), std::move(chart)});
    }
    add_parts(out, axis, parts, charts);
    add_releases(out, recording, summary);
    add_absences(out, recording, summary);
    return out + fmt::format(
                     "<script type=\"application/json\" id=\"trace\">{}</script>\n<script>\n{}</script>\n</body>"
                     "\n</html>\n",
                     within_script(data_of(axis, charts)), kPageScript);
}

}  // namespace curb::cli
