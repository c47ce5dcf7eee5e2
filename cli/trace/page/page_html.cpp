// The page: the picture as inline SVG in a box that grows with the window; words beside it are HTML, so that they keep
// their size. Marks are buttons, so that keys reach them.
#include <array>
#include <cstdio>

#include "pages.hpp"
#include "policy/fields.hpp"
#include "policy/words.hpp"

namespace curb::cli {

extern const char *const kPageStyle;
extern const char *const kPageScript;

namespace {

constexpr std::size_t kHtmlColumns = 1200;
constexpr std::size_t kMostRows = 200;
constexpr Canvas kFullWidth{0, 1, 1, 0, 0, 100'000, 10'000, 0};

std::string percent(double part) {
    std::array<char, 32> out;
    std::snprintf(out.data(), out.size(), "%.3f%%", part * 100);
    return out.data();
}

std::string exact(policy::Bytes bytes) {
    return "<span title=\"" + std::to_string(bytes) + " bytes\">" + policy::format_human(bytes) + "</span>";
}
std::string exact(std::int64_t bytes) {
    return "<span title=\"" + std::to_string(bytes) + " bytes\">" + control::size_text(bytes) + "</span>";
}

class Table {
  public:
    // A heading that begins with '#' is one of numbers.
    Table(std::string &out, const std::vector<std::string> &headings) : out_(out) {
        out_ += "<div class=\"wide\"><table><thead><tr>";
        for (const std::string &heading : headings) {
            numbers_.push_back(heading.starts_with('#'));
            out_ += numbers_.back() ? "<th class=\"number\">" + heading.substr(1) : "<th>" + heading;
            out_ += "</th>";
        }
        out_ += "</tr></thead><tbody>\n";
    }
    ~Table() { out_ += "</tbody></table></div>\n"; }
    Table(const Table &) = delete;
    Table &operator=(const Table &) = delete;
    // Cells are markup.
    void row(const std::vector<std::string> &cells) {
        out_ += "<tr>";
        for (std::size_t i = 0; i < cells.size(); ++i)
            out_ += (numbers_[i] ? "<td class=\"number\">" : "<td>") + cells[i] + "</td>";
        out_ += "</tr>\n";
    }

  private:
    std::string &out_;
    std::vector<bool> numbers_;
};

std::string mark(const Mark &mark, const Picture &picture, const Chart &chart, const char *name, const char *shape) {
    const double span = static_cast<double>(picture.end_ns - picture.begin_ns);
    const auto part = [&](std::uint64_t ns) { return static_cast<double>(ns - std::min(ns, picture.begin_ns)) / span; };
    std::array<char, 64> x;
    std::snprintf(x.data(), x.size(), "%.7f", part(mark.ns));
    std::string out = "<button type=\"button\" class=\"mark " + std::string(name) + "\" data-x=\"" + x.data() + "\"";
    out += " data-count=\"" + std::to_string(mark.count) + "\"";
    std::string style = "left:" + percent(part(mark.ns));
    if (std::string_view(name) == "wait") {
        std::snprintf(x.data(), x.size(), "%.7f", part(mark.ended_ns));
        out += " data-end=\"" + std::string(x.data()) + "\"";
        style += ";width:" + percent(part(mark.ended_ns) - part(mark.ns));
    } else if (std::string_view(name) == "refuse") {
        const double high = static_cast<double>(mark.height) / static_cast<double>(chart.top);
        style += ";top:" + percent(1 - std::min(high, 0.94));
    }
    const std::string text = markup(mark.text);
    return out + " style=\"" + style + "\" title=\"" + text + "\" aria-label=\"" + text + "\">" + shape + "</button>\n";
}

constexpr const char *kDownShape = "<svg viewBox=\"-8 -8 16 16\" aria-hidden=\"true\"><path d=\"M-7-6H7L0 7Z\"/></svg>";
constexpr const char *kDiamondShape =
    "<svg viewBox=\"-8 -8 16 16\" aria-hidden=\"true\"><path d=\"M0-7L6 0 0 7-6 0Z\"/></svg>";

void add_legend(std::string &out, const Chart &chart) {
    out += "<ul class=\"legend\">";
    for (const policy::Kind kind : chart.kinds)
        out += "<li><span class=\"swatch\" style=\"background:" + std::string(colour_of(kind)) + "\"></span>" +
               policy::kind_text(kind) + "</li>";
    if (!chart.cap.empty()) out += "<li><span class=\"stroke\"></span>cap</li>";
    if (!chart.allowance.empty()) out += "<li><span class=\"stroke allowance\"></span>allowance</li>";
    const auto symbol = [&](const std::vector<Mark> &marks, const char *what, const char *shape, const char *words) {
        if (marks.empty()) return;
        out += "<li><span class=\"" + std::string(what) +
               "\" style=\"transform:none;position:static;width:14px;height:14px\">" + shape + "</span>" + words +
               "</li>";
    };
    symbol(chart.refusals, "refuse", kDownShape, "refused");
    symbol(chart.releases, "release", kDiamondShape, "released");
    if (!chart.waits.empty()) out += "<li><span class=\"wait\" style=\"width:18px\"></span>waited for room</li>";
    out += "</ul>\n";
}

void add_plot(std::string &out, const Picture &picture, const Chart &chart) {
    Canvas canvas = kFullWidth;
    canvas.begin_ns = picture.begin_ns;
    canvas.end_ns = picture.end_ns;
    canvas.top = chart.top;
    out += "<div class=\"chart\">\n<div class=\"heights\">";
    const auto heights = height_ticks(chart.top);
    for (const policy::Bytes height : heights)
        out += "<span style=\"top:" + percent(canvas.y(height) / canvas.height) + "\">" + policy::format_human(height) +
               "</span>";
    out += "</div>\n<div class=\"plot\" tabindex=\"0\" role=\"group\" aria-label=\"held memory of " +
           gpu_name(chart.gpu) +
           " over time; arrow keys move, + and - zoom\">\n<svg viewBox=\"0 0 100000 10000\" "
           "preserveAspectRatio=\"none\" aria-hidden=\"true\">\n";
    for (const policy::Bytes height : heights) {
        const std::string y = std::to_string(static_cast<int>(canvas.y(height)));
        out += "<path class=\"gridline\" d=\"M0 " + y + "H100000\"/>";
    }
    for (std::size_t layers = chart.kinds.size(); layers > 0; --layers)
        out += "\n<path class=\"layer\" fill=\"" + std::string(colour_of(chart.kinds[layers - 1])) + "\" d=\"" +
               area(chart, layers, canvas) + "\"/>";
    if (const std::string path = line(chart.allowance, canvas); !path.empty())
        out += "\n<path class=\"allowance-line\" d=\"" + path + "\"/>";
    if (const std::string path = line(chart.cap, canvas); !path.empty())
        out += "\n<path class=\"cap\" d=\"" + path + "\"/>";
    out += "\n</svg>\n<div class=\"marks\">\n";
    for (const Mark &one : chart.waits) out += mark(one, picture, chart, "wait", "");
    for (const Mark &one : chart.releases) out += mark(one, picture, chart, "release", kDiamondShape);
    for (const Mark &one : chart.refusals) out += mark(one, picture, chart, "refuse", kDownShape);
    out += "</div>\n<div class=\"drag\"></div><div class=\"cursor\"></div>\n</div>\n<div class=\"times\">";
    const std::uint64_t span = picture.end_ns - picture.begin_ns;
    for (const auto &[ns, text] : time_ticks(span, 8))
        if (ns <= span / 100 * 97)
            out += "<span style=\"left:" + percent(static_cast<double>(ns) / static_cast<double>(span)) + "\">" + text +
                   "</span>";
    out +=
        "</div>\n</div>\n<p class=\"readout\" aria-live=\"polite\">Point at the picture, or use the arrow keys in it, "
        "for the figures of a moment; drag to zoom, double click or Escape for the whole.</p>\n";
}

void add_tables(std::string &out, const Recording &recording, const GpuSummary &gpu) {
    if (!gpu.refusals.empty()) {
        out += "<h3>Refused</h3>\n";
        {
            Table table(out, {"Time", "#Asked for", "Kind", "Met", "#Held then", "#Limit", "#Thread"});
            for (std::size_t i = 0; i < std::min(gpu.refusals.size(), kMostRows); ++i) {
                const Moment &one = *gpu.refusals[i];
                const bool limited = one.limit() != 0 && one.limit() != policy::kUnbounded;
                table.row({clock_text(recording, one.ns), exact(one.bytes), policy::kind_text(one.kind),
                           policy::obstacle_text(one.why()), exact(one.held), limited ? exact(one.limit()) : "",
                           std::to_string(one.thread)});
            }
        }
        if (gpu.refusals.size() > kMostRows)
            out += "<p class=\"note\">and " + std::to_string(gpu.refusals.size() - kMostRows) +
                   " more; curb report --json tells of more of them.</p>\n";
    }
    if (!gpu.held_at_peak.empty()) {
        out += "<h3>Largest allocations at the peak</h3>\n";
        Table table(out, {"#Size", "Kind", "Since", "Pointer", "#Thread"});
        for (const Moment *one : gpu.held_at_peak)
            table.row({exact(one->bytes), policy::kind_text(one->kind), clock_text(recording, one->ns),
                       "<code>" + pointer_text(one->pointer) + "</code>", std::to_string(one->thread)});
    }
    if (!gpu.requests.empty()) {
        out += "<h3>Largest requests</h3>\n";
        Table table(out, {"#Size", "Kind", "Time", "Came of it"});
        for (const Moment *one : gpu.requests)
            table.row({exact(one->bytes), policy::kind_text(one->kind), clock_text(recording, one->ns),
                       one->what == What::refuse ? "refused" : "given"});
    }
}

void add_releases(std::string &out, const Recording &recording, const Summary &summary) {
    if (summary.releases.empty()) return;
    out += "<h2>Released</h2>\n";
    {
        Table table(out, {"Time", "Asked for by", "#Came back", "Steps", "#Took"});
        for (std::size_t i = 0; i < std::min(summary.releases.size(), kMostRows); ++i) {
            const Release &one = summary.releases[i];
            const auto step = [](const auto &part) {
                return policy::step_name(part.first) + (" " + exact(part.second));
            };
            table.row({clock_text(recording, one.began_ns), markup(one.trigger), exact(one.bytes),
                       policy::joined(one.steps, ", ", step), span_text(one.ended_ns - one.began_ns)});
        }
    }
    if (summary.releases.size() > kMostRows)
        out += "<p class=\"note\">and " + std::to_string(summary.releases.size() - kMostRows) + " more.</p>\n";
}

// ---- what the script reads: times in us, sizes in bytes ----

std::string list(const auto &values, auto text) { return "[" + policy::joined(values, ",", text) + "]"; }
std::string microseconds(std::uint64_t ns) {
    std::array<char, 40> out;
    std::snprintf(out.data(), out.size(), "%llu.%03u", static_cast<unsigned long long>(ns / 1000),
                  static_cast<unsigned>(ns % 1000));
    return out.data();
}
std::string limits(const std::vector<LimitSample> &samples) {
    return "{\"t\":" + list(samples, [](const auto &one) { return microseconds(one.ns); }) + ",\"v\":" +
           list(samples,
                [](const auto &one) {
                    return one.limit == policy::kUnbounded ? std::string("null") : std::to_string(one.limit);
                }) +
           "}";
}

// When the trace began, in this machine's time zone.
std::string seconds_of_day(const Recording &recording) {
    if (recording.header.unix_ns <= 0) return "null";
    const std::string text = clock_text(recording, 0);
    const auto digits = [&](std::size_t at) {
        return static_cast<std::uint64_t>((text[at] - '0') * 10 + text[at + 1] - '0');
    };
    const std::uint64_t ms = ((digits(0) * 60 + digits(3)) * 60 + digits(6)) * 1000 +
                             static_cast<std::uint64_t>(recording.header.unix_ns / 1'000'000 % 1000);
    std::array<char, 40> out;
    std::snprintf(out.data(), out.size(), "%llu.%03u", static_cast<unsigned long long>(ms / 1000),
                  static_cast<unsigned>(ms % 1000));
    return out.data();
}

std::string data_of(const Recording &recording, const Picture &picture) {
    const auto chart_data = [](const Chart &chart) {
        const auto kind_data = [&](policy::Kind kind) {
            return "{\"name\":" + policy::json_text(std::string(policy::kind_text(kind))) + ",\"v\":" +
                   list(chart.samples,
                        [&](const HeldSample &one) {
                            return std::to_string(one.kinds[static_cast<std::size_t>(kind)]);
                        }) +
                   "}";
        };
        return "{\"gpu\":" + std::to_string(chart.gpu) +
               ",\"t\":" + list(chart.samples, [](const HeldSample &one) { return microseconds(one.ns); }) +
               ",\"held\":" + list(chart.samples, [](const HeldSample &one) { return std::to_string(one.held); }) +
               ",\"kinds\":" + list(chart.kinds, kind_data) + ",\"cap\":" + limits(chart.cap) +
               ",\"allowance\":" + limits(chart.allowance) + "}";
    };
    return "{\"begin\":" + microseconds(picture.begin_ns) + ",\"end\":" + microseconds(picture.end_ns) +
           ",\"clock\":" + seconds_of_day(recording) + ",\"gpus\":" + list(picture.charts, chart_data) + "}";
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

std::string html_page(const Recording &recording, const Summary &summary) {
    const Picture picture = draw(recording, summary, kHtmlColumns);
    std::string out =
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
        "'unsafe-inline'; script-src 'unsafe-inline'; img-src data:\">\n"
        "<link rel=\"icon\" href=\"data:,\">\n<title>" +
        markup(title_of(recording)) + " – GPU memory</title>\n<style>\n" + kPageStyle + "</style>\n</head>\n<body>\n";
    out +=
        "<h1>" + markup(title_of(recording)) + "</h1>\n<p class=\"origin\">" + markup(origin_of(recording)) + "</p>\n";
    if (!recording.missing.empty()) {
        out += "<div class=\"missing\" role=\"note\"><p><strong>Not all of the run is here.</strong></p>";
        for (const std::string &one : recording.missing) out += "<p>" + markup(one) + "</p>";
        out += "</div>\n";
    }
    out += "<ul class=\"summary\">";
    for (const std::string &one : sentences(recording, summary)) out += "<li>" + markup(one) + "</li>";
    out += "</ul>\n";
    if (summary.gpus.empty()) out += "<p>No memory of a GPU was used.</p>\n";
    for (std::size_t i = 0; i < picture.charts.size(); ++i) {
        const Chart &chart = picture.charts[i];
        const GpuSummary &gpu = summary.gpus[i];
        out += "<section data-gpu=\"" + std::to_string(chart.gpu) + "\">\n<h2>" + markup(heading_of(gpu)) + "</h2>\n";
        add_legend(out, chart);
        if (chart.cap_above && gpu.cap)
            out += "<p class=\"note\">The cap, " + policy::format_human(*gpu.cap) + ", is far above the picture.</p>\n";
        add_plot(out, picture, chart);
        if (gpu.live != 0)
            out += "<p class=\"note\">Not freed before the end: " + std::to_string(gpu.live) +
                   (gpu.live == 1 ? " allocation, " : " allocations, ") + policy::format_human(gpu.live_bytes) +
                   ".</p>\n";
        add_tables(out, recording, gpu);
        out += "</section>\n";
    }
    add_releases(out, recording, summary);
    out += "<script type=\"application/json\" id=\"trace\">" + within_script(data_of(recording, picture)) +
           "</script>\n<script>\n" + kPageScript + "</script>\n</body>\n</html>\n";
    return out;
}

}  // namespace curb::cli
