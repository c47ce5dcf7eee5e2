// Words that a user wrote: read, shown in messages, and what was probably meant. What builds strings may throw
// std::bad_alloc; whoever makes a message out of them catches it.
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

// The number that the whole text is; none: it is none, or one that a `Number` has no room for.
template <class Number>
std::optional<Number> parse_number(std::string_view text, int base = 10) noexcept {
    Number out{};
    const char *end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, out, base);
    return error == std::errc() && stop == end ? std::optional(out) : std::nullopt;
}
// A decimal number without sign, blanks or leading zeros.
template <class Number = int>
std::optional<Number> whole_number(std::string_view text) noexcept {
    if (text.starts_with('-') || (text.size() > 1 && text.front() == '0')) return std::nullopt;
    return parse_number<Number>(text);
}

// Without such characters at its ends.
std::string_view trimmed(std::string_view text, std::string_view blanks = " \t\r\n") noexcept;

// What `text` makes of each item, one behind the other.
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

// Of ASCII letters; other bytes stay as they are.
std::string lower_case(std::string_view text);
// Without regard to case.
bool begins_with(std::string_view word, std::string_view beginning);

// `text` on one line whatever is in it: control characters as \xNN, nothing else changed.
std::string one_line(std::string_view text);
// How many bytes at `i` are one character of well-formed UTF-8 (RFC 3629); 0: none are.
std::size_t character(std::string_view text, std::size_t i);
// `text` with U+FFFD for each byte that is not part of well-formed UTF-8, as JSON must be.
std::string valid_utf8(std::string_view text);
// On one line, with U+FFFD for what a terminal would act on instead of showing it (controls, also those of Unicode that
// turn the direction of writing) and for what is no character. Well-formed UTF-8.
std::string plain(std::string_view text);
// On one line, and shortened when it is long.
std::string brief(std::string_view text);
// The same between marks.
std::string quote(std::string_view text, char mark = '\'');

// The candidate that `word` is a slip of: equal but for case, the beginning of the other, or at most two edits away
// (in short words one). Empty: none is near.
std::string_view nearest(std::string_view word, std::span<const std::string_view> candidates);

// `key` as a reference token of a JSON pointer (RFC 6901).
std::string pointer_token(std::string_view key);

}  // namespace curb::policy
