// Words that a user wrote: read, shown in messages, and what was probably meant. What builds strings may throw
// std::bad_alloc; whoever makes a message out of them catches it.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace curb::policy {

// A decimal number without sign, blanks or leading zeros.
std::optional<int> whole_number(std::string_view digits);

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
