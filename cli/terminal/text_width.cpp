#include "terminal/text_width.hpp"

#include <algorithm>
#include <array>
#include <iterator>

namespace curb::cli {
namespace {

struct Range {
    char32_t first, last;
};

// Source: Unicode 15's classes Mn, Me, Cf and East_Asian_Width W, F, reduced to ranges that occur in names.
constexpr Range kNone[] = {{0x0300, 0x036F}, {0x0483, 0x0489}, {0x0591, 0x05BD},  {0x0610, 0x061A}, {0x064B, 0x065F},
                           {0x06D6, 0x06DC}, {0x0900, 0x0902}, {0x093C, 0x093C},  {0x0941, 0x0948}, {0x094D, 0x094D},
                           {0x0E31, 0x0E31}, {0x0E34, 0x0E3A}, {0x0E47, 0x0E4E},  {0x1AB0, 0x1AFF}, {0x1DC0, 0x1DFF},
                           {0x200B, 0x200F}, {0x202A, 0x202E}, {0x2060, 0x206F},  {0x20D0, 0x20FF}, {0xFE00, 0xFE0F},
                           {0xFE20, 0xFE2F}, {0xFEFF, 0xFEFF}, {0xE0100, 0xE01EF}};
constexpr Range kTwo[] = {
    {0x1100, 0x115F}, {0x231A, 0x231B},   {0x2329, 0x232A},   {0x23E9, 0x23EC},   {0x2E80, 0x303E},  {0x3041, 0x4DBF},
    {0x4E00, 0xA4CF}, {0xA960, 0xA97F},   {0xAC00, 0xD7A3},   {0xF900, 0xFAFF},   {0xFE30, 0xFE6F},  {0xFF00, 0xFF60},
    {0xFFE0, 0xFFE6}, {0x1F300, 0x1F64F}, {0x1F680, 0x1F6FF}, {0x1F900, 0x1F9FF}, {0x20000, 0x3FFFD}};

template <std::size_t N>
bool is_in(const Range (&ranges)[N], char32_t c) {
    return std::any_of(std::begin(ranges), std::end(ranges),
                       [=](const Range &range) { return c >= range.first && c <= range.last; });
}

struct Character {
    std::string_view bytes;
    char32_t code;
};
// Returns the first character. Precondition: the text is not empty.
Character first_of(std::string_view text) {
    const auto lead = static_cast<unsigned char>(text[0]);
    const std::size_t length = policy::character(text, 0);
    if (length < 2) return {text.substr(0, 1), length == 1 ? lead : U'\uFFFD'};
    char32_t code = lead & (0xFFU >> (length + 1));
    for (const char next : text.substr(1, length - 1)) code = code << 6 | (static_cast<unsigned char>(next) & 0x3FU);
    return {text.substr(0, length), code};
}

std::size_t columns_of(char32_t c) { return is_in(kNone, c) ? 0 : is_in(kTwo, c) ? 2 : 1; }

// Returns the longest beginning that fits in so many columns.
std::string_view beginning(std::string_view text, std::size_t columns) {
    std::size_t length = 0, taken = 0;
    while (length < text.size()) {
        const Character next = first_of(text.substr(length));
        taken += columns_of(next.code);
        if (taken > columns) break;
        length += next.bytes.size();
    }
    return text.substr(0, length);
}

}  // namespace

std::size_t width_of(std::string_view text) {
    std::size_t out = 0;
    while (!text.empty()) {
        const Character next = first_of(text);
        out += columns_of(next.code);
        text.remove_prefix(next.bytes.size());
    }
    return out;
}

std::string clipped(std::string_view text, std::size_t columns, bool unicode) {
    if (width_of(text) <= columns) return std::string(text);
    if (columns == 0) return {};
    return std::string(beginning(text, columns - 1)) + (unicode ? "…" : "+");
}

std::string padded(std::string text, std::size_t columns, bool right) {
    const std::size_t width = width_of(text);
    if (width < columns) text.insert(right ? 0 : text.size(), columns - width, ' ');
    return text;
}

std::string wrapped(std::string_view text, std::size_t columns, std::size_t indent, std::size_t taken) {
    std::string out;
    if (indent + 8 > columns) indent = 0;
    for (std::size_t room = columns - std::min(columns, taken);; room = columns - indent) {
        if (width_of(text) <= room) return out.append(text).append("\n");
        std::string_view line = beginning(text, room);
        if (line.empty()) line = first_of(text).bytes;
        // +1: a blank right behind the line is a place to break too.
        const std::size_t blank = text.substr(0, line.size() + 1).rfind(' ');
        if (blank != std::string_view::npos && blank > 0) line = text.substr(0, blank);
        text.remove_prefix(line.size());
        text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
        out.append(line).append("\n");
        if (text.empty()) return out;
        out.append(indent, ' ');
    }
}

std::string aligned(const std::vector<std::vector<std::string>> &lines) {
    constexpr std::size_t kWidest = 36;  // columns; a wider cell does not push the others away
    std::vector<std::size_t> widths;
    for (const auto &cells : lines) {
        widths.resize(std::max(widths.size(), cells.size()));
        for (std::size_t i = 0; cells.size() > 1 && i < cells.size(); ++i)
            if (const std::size_t width = width_of(cells[i]); width <= kWidest) widths[i] = std::max(widths[i], width);
    }
    std::string out;
    for (const auto &cells : lines) {
        std::string line;
        for (std::size_t i = 0; i < cells.size(); ++i) line += (i == 0 ? "" : "  ") + padded(cells[i], widths[i]);
        out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
    }
    return out;
}

std::string counted(std::uint64_t number, const std::string &one) {
    const char *end = number == 1 ? "" : one.ends_with('s') ? "es" : "s";
    return std::to_string(number) + " " + one + end;
}

std::string local_time(std::time_t seconds, const char *format) {
    std::tm local{};
    std::array<char, 64> out;
    ::localtime_r(&seconds, &local);
    return {out.data(), std::strftime(out.data(), out.size(), format, &local)};
}

}  // namespace curb::cli
