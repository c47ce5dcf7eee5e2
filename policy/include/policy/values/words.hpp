// Reads text that users write, shows it in messages, and suggests corrections. Functions that return strings may throw
// std::bad_alloc.
#pragma once

#include <charconv>
#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace curb::policy {

constexpr bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }

// Reads the whole text as a number. Returns nullopt if it is no number, or does not fit `Number`.
template <class Number>
std::optional<Number> parse_number(std::string_view text, int base = 10) noexcept {
    Number out{};
    const char *end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, out, base);
    return error == std::errc() && stop == end ? std::optional(out) : std::nullopt;
}
// Reads a decimal number without sign, blanks or leading zeros. Returns nullopt if it is no such number.
template <class Number = int>
std::optional<Number> whole_number(std::string_view text) noexcept {
    if (text.starts_with('-') || (text.size() > 1 && text.front() == '0')) return std::nullopt;
    return parse_number<Number>(text);
}

// Returns the text without blanks at its ends.
std::string_view trimmed(std::string_view text, std::string_view blanks = " \t\r\n") noexcept;

// Returns the part of a path behind its last slash.
constexpr std::string_view file_name(std::string_view path) noexcept { return path.substr(path.rfind('/') + 1); }

// Joins the items, each converted by `text`.
template <class Items, class Text = std::identity>
std::string joined(const Items &items, std::string_view separator, Text text = {}) {
    std::string out;
    bool first = true;
    for (const auto &item : items) {
        if (!std::exchange(first, false)) out += separator;
        out += std::invoke(text, item);
    }
    return out;
}

// Converts ASCII letters; other bytes stay as they are.
std::string lower_case(std::string_view text);
// True if `word` begins with `beginning`, ignoring case.
bool begins_with(std::string_view word, std::string_view beginning);

// Returns `text` on one line: control characters become \xNN.
std::string one_line(std::string_view text);
// Returns the length of the UTF-8 character at `i` (RFC 3629). 0 if it is malformed.
std::size_t character(std::string_view text, std::size_t i);
// Replaces each byte that is not part of well-formed UTF-8 by U+FFFD, for JSON.
std::string valid_utf8(std::string_view text);
// True for a character on which a terminal acts: controls (C0, DEL, C1) and Unicode's marks of direction and of lines.
bool is_acted_on(std::string_view character);
// Makes `text` safe to print on a terminal: one line of well-formed UTF-8, with U+FFFD for control characters,
// Unicode's direction marks and malformed bytes.
std::string plain(std::string_view text);
// The same as one_line(), shortened if it is long.
std::string brief(std::string_view text);
// The same as brief(), between quotation marks.
std::string quote(std::string_view text, char mark = '\'');

// Returns the candidate that `word` probably means: equal except for case, a prefix of it, or at most two edits away
// (one in short words). Empty if there is none.
std::string_view nearest(std::string_view word, std::span<const std::string_view> candidates);

// Returns `key` as a reference token of a JSON pointer (RFC 6901).
std::string pointer_token(std::string_view key);

}  // namespace curb::policy
