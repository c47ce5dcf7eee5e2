// The picture for papers: white ground, and attributes instead of CSS, which rsvg and LaTeX's converters hardly know.

#include <utility>

#include "page/pages.hpp"
#include "policy/values/words.hpp"
#include "terminal/format.hpp"

namespace curb::cli {
namespace {

constexpr std::size_t kSvgColumns = 800;
constexpr double kWidth = 900, kLeft = 78, kRight = 18, kPlotHeight = 250, kLineHeight = 17;
constexpr const char *kCap = "#c2410c", *kDark = "#1b1b1b", *kFaint = "#5c5c5c", *kGrid = "#d9d9d9";
// Covers the held memory while the process is out of its GPUs.
constexpr const char *kBand = R"( fill="#ffffff" fill-opacity="0.72" stroke="#5c5c5c" stroke-width="0.8")";
constexpr const char *kDashed = R"( stroke-dasharray="5 3")";

std::string words(double x, double y, std::string_view text, std::string_view attributes = {}) {
    return fmt::format("<text x=\"{:.2f}\" y=\"{:.2f}\"{}>{}</text>\n", x, y, attributes, markup(text));
}

std::string stroked(std::string_view path, const char *colour, const char *width, const char *more = "") {
    return fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{}\"{}/>\n", path, colour, width,
                       more);
}

std::string waiting_box(double x, double y, std::string_view width, const std::string &content) {
    return fmt::format(
        "<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{}\" height=\"6\" fill=\"url(#waiting)\" stroke=\"{}\" "
        "stroke-width=\"0.6\"{}\n",
        x, y, width, kDark, content);
}

// Breaks the text at blanks into lines of at most kMost bytes.
std::vector<std::string> broken(std::string_view text) {
    constexpr std::size_t kMost = 125;
    std::vector<std::string> out;
    while (text.size() > kMost) {
        const std::size_t blank = text.rfind(' ', kMost);
        if (blank == std::string_view::npos || blank == 0) break;
        out.emplace_back(text.substr(0, blank));
        text.remove_prefix(blank + 1);
    }
    out.emplace_back(text);
    return out;
}

std::string shape(double x, double y, const char *path, const char *colour, std::string_view title) {
    return fmt::format(
        R"X(<path transform="translate({:.2f} {:.2f})" d="{}" fill="{}" stroke="#ffffff" stroke-width="0.8">)X"
        "<title>{}</title></path>\n",
        x, y, path, colour, markup(title));
}
constexpr const char *kDownPath = "M-5-9H5L0 0Z", *kDiamondPath = "M0-5L4.5 0 0 5-4.5 0Z";

// Adds the legend: swatches with their names. Returns its height.
double add_legend(std::string &out, const Chart &chart, double upper) {
    constexpr double kLetter = 6.1;
    double x = kLeft, y = upper + 10;
    const auto room_for = [&](std::string_view text) {
        const double width = 26 + kLetter * static_cast<double>(text.size()) + 12;
        if (x + width > kWidth - kRight && x > kLeft) {
            x = kLeft;
            y += kLineHeight;
        }
        out += words(x + 20, y, text);
        return std::exchange(x, x + width);
    };
    for (const policy::Kind kind : chart.kinds) {
        const double at = room_for(policy::kind_text(kind));
        out += fmt::format("<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"12\" height=\"12\" fill=\"{}\"/>\n", at + 3, y - 10,
                           colour_of(kind));
    }
    const auto stroke = [&](const char *text, const char *colour, const char *width, const char *more) {
        const double at = room_for(text);
        out += stroked(fmt::format("M{:.2f} {:.2f}h16", at, y - 4), colour, width, more);
    };
    if (!chart.cap.empty()) stroke("cap", kCap, "2.2", "");
    if (!chart.allowance.empty()) stroke("allowance", kDark, "1.4", kDashed);
    const auto symbol = [&](const std::vector<Mark> &marks, const char *text, const char *path, double lower,
                            const char *colour) {
        if (marks.empty()) return;
        const double at = room_for(text);
        out += shape(at + 9, y - 4 + lower, path, colour, text);
    };
    symbol(chart.refusals, "refused", kDownPath, 5, kCap);
    symbol(chart.releases, "released", kDiamondPath, 0, kDark);
    if (!chart.waits.empty()) {
        const double at = room_for("waited for room");
        out += waiting_box(at, y - 7, "16", "/>");
    }
    if (!chart.absences.empty()) {
        const double at = room_for("in host memory");
        out += fmt::format(R"(<rect x="{:.2f}" y="{:.2f}" width="16" height="12" fill="{}"/>)"
                           R"(<rect x="{:.2f}" y="{:.2f}" width="16" height="12"{}/>)"
                           "\n",
                           at, y - 10, colour_of(policy::Kind::plain), at, y - 10, kBand);
    }
    return y + 8 - upper;
}

void add_plot(std::string &out, const Recording &recording, const Picture &picture, const Chart &chart, double upper) {
    const Canvas canvas{picture.begin_ns,        picture.end_ns, chart.top, kLeft, upper,
                        kWidth - kLeft - kRight, kPlotHeight,    1};
    constexpr double kRightEdge = kWidth - kRight;
    const double floor = upper + kPlotHeight;
    for (const policy::Bytes height : height_ticks(chart.top)) {
        const double y = canvas.y(height);
        out += stroked(fmt::format("M{:.2f} {:.2f}H{:.2f}", kLeft, y, kRightEdge), kGrid, "0.8");
        out += words(kLeft - 6, y + 4, policy::format_human(height),
                     fmt::format(R"( text-anchor="end" fill="{}")", kFaint));
    }
    for (const auto &[ns, text] :
         time_ticks(picture.begin_ns, picture.end_ns, 8, local_begin_ns(recording), has_days(recording))) {
        const double x = canvas.x(ns);
        out += stroked(fmt::format("M{:.2f} {:.2f}v4", x, floor), kFaint, "0.8");
        out += words(x, floor + 16, text, fmt::format(R"( text-anchor="middle" fill="{}")", kFaint));
    }
    for (std::size_t layers = chart.kinds.size(); layers > 0; --layers)
        out += fmt::format("<path d=\"{}\" fill=\"{}\"/>\n", area(chart, layers, canvas),
                           colour_of(chart.kinds[layers - 1]));
    for (const Mark &one : chart.absences)
        out +=
            fmt::format("<path d=\"{}\"{}><title>{}</title></path>\n", bands({one}, canvas), kBand, markup(one.text));
    if (const std::string path = line(chart.allowance, canvas); !path.empty())
        out += stroked(path, kDark, "1.4", kDashed);
    if (const std::string path = line(chart.cap, canvas); !path.empty()) out += stroked(path, kCap, "2.2");
    for (const Mark &one : chart.waits) {
        const double x = canvas.x(one.ns), width = std::max(canvas.x(one.ended_ns) - x, 1.5);
        out +=
            waiting_box(x, floor - 7, fmt::format("{:.2f}", width), "><title>" + markup(one.text) + "</title></rect>");
    }
    for (const Mark &one : chart.releases) out += shape(canvas.x(one.ns), upper + 7, kDiamondPath, kDark, one.text);
    for (const Mark &one : chart.refusals)
        out += shape(canvas.x(one.ns), std::max(canvas.y(one.height), upper + 10), kDownPath, kCap, one.text);
    out += stroked(fmt::format("M{:.2f} {:.2f}V{:.2f}H{:.2f}", kLeft, upper, floor, kRightEdge), kDark, "1");
}

}  // namespace

std::string svg_picture(const Recording &recording, const Summary &summary) {
    const Picture picture = draw(recording, summary, kSvgColumns);
    constexpr std::size_t kLongestTitle = 100;
    std::string title = title_of(recording);
    if (title.size() > kLongestTitle) title = policy::valid_utf8(title.substr(0, kLongestTitle)) + "…";
    std::string body = words(kLeft, 24, title, R"( font-size="15" font-weight="bold")");
    double y = 26;
    const auto say = [&](std::string_view text, const char *colour) {
        for (const std::string &part : broken(text))
            body += words(kLeft, y += kLineHeight, part, fmt::format(" fill=\"{}\"", colour));
    };
    say(origin_of(recording), kFaint);
    for (const std::string &one : recording.missing) say(one, kCap);
    for (const std::string &one : sentences(recording, summary)) say(one, kDark);
    for (const Chart &chart : picture.charts) {
        y += 28;
        body += words(kLeft, y, heading_of(summary_of(summary, chart)), R"( font-weight="bold")");
        y += 8;
        y += add_legend(body, chart, y);
        add_plot(body, recording, picture, chart, y);
        y += kPlotHeight + 24;
    }
    return fmt::format(
        R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0:.2f}" height="{1:.2f}" viewBox="0 0 {0:.2f} {1:.2f}")"
        R"X( font-family="sans-serif" font-size="12" fill="{2}">
<defs><pattern id="waiting" width="4" height="4" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">)X"
        R"(<rect width="4" height="4" fill="#ffffff"/><rect width="2" height="4" fill="{2}"/></pattern></defs>
<rect width="100%" height="100%" fill="#ffffff"/>
{3}</svg>
)",
        kWidth, y + 6, kDark, body);
}

}  // namespace curb::cli
