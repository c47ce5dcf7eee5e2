#include "policy/values/words.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

namespace curb::policy {
namespace {

constexpr std::size_t kShown = 60;        // bytes of a text that a message shows
constexpr std::size_t kLongestWord = 40;  // longer than any key

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool equal_but_for_case(std::string_view a, std::string_view b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) { return lower(x) == lower(y); });
}

// Returns the number of insertions, deletions, replacements and swaps of neighbours between two words (optimal string
// alignment), ignoring case.
std::size_t edits(std::string_view a, std::string_view b) {
    if (a.size() > kLongestWord || b.size() > kLongestWord) return kLongestWord;
    std::array<std::array<std::size_t, kLongestWord + 1>, 3> rows{};  // the row before the last, the last, this one
    for (std::size_t j = 0; j <= b.size(); ++j) rows[1][j] = j;
    for (std::size_t i = 1; i <= a.size(); ++i) {
        rows[2][0] = i;
        for (std::size_t j = 1; j <= b.size(); ++j) {
            const bool same = lower(a[i - 1]) == lower(b[j - 1]);
            rows[2][j] = std::min({rows[1][j] + 1, rows[2][j - 1] + 1, rows[1][j - 1] + (same ? 0 : 1)});
            if (i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) && lower(a[i - 2]) == lower(b[j - 1])) {
                rows[2][j] = std::min(rows[2][j], rows[0][j - 2] + 1);
            }
        }
        rows[0] = rows[1];
        rows[1] = rows[2];
    }
    return rows[1][b.size()];
}

// Returns the distance of `word` from `candidate`; kLongestWord if it is too far for a suggestion.
std::size_t distance(std::string_view word, std::string_view candidate) {
    if (equal_but_for_case(word, candidate)) return 0;
    const std::size_t apart = edits(word, candidate);
    if (apart <= (candidate.size() <= 4 ? 1 : 2)) return apart;
    if (word.size() >= 2 && (begins_with(word, candidate) || begins_with(candidate, word))) return 3;
    return kLongestWord;
}

bool continues_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

}  // namespace

std::string_view trimmed(std::string_view text, std::string_view blanks) noexcept {
    text.remove_prefix(std::min(text.find_first_not_of(blanks), text.size()));
    return text.substr(0, text.find_last_not_of(blanks) + 1);  // npos + 1 is 0
}

std::string lower_case(std::string_view text) {
    std::string out(text);
    std::transform(out.begin(), out.end(), out.begin(), lower);
    return out;
}

bool begins_with(std::string_view word, std::string_view beginning) {
    return beginning.size() <= word.size() && equal_but_for_case(word.substr(0, beginning.size()), beginning);
}

std::string one_line(std::string_view text) {
    constexpr std::string_view kDigits = "0123456789ABCDEF";
    std::string out;
    for (const char c : text) {
        const auto byte = static_cast<unsigned char>(c);
        if (byte >= 0x20 && byte != 0x7F) {
            out += c;
        } else {
            out.append("\\x").append(1, kDigits[byte >> 4]).append(1, kDigits[byte & 15]);
        }
    }
    return out;
}

namespace {

// Returns the least and the greatest second byte of a character that begins with `lead`. They exclude overlong forms,
// surrogates and code points beyond U+10FFFF.
std::pair<unsigned, unsigned> second_byte(unsigned lead) {
    switch (lead) {
        case 0xE0: return {0xA0, 0xBF};
        case 0xED: return {0x80, 0x9F};
        case 0xF0: return {0x90, 0xBF};
        case 0xF4: return {0x80, 0x8F};
        default: return {0x80, 0xBF};
    }
}

}  // namespace

std::size_t character(std::string_view text, std::size_t i) {
    const auto byte = [&](std::size_t at) { return at < text.size() ? static_cast<unsigned char>(text[at]) : 0U; };
    const unsigned lead = byte(i);
    if (lead < 0x80) return 1;
    const std::size_t length = lead >= 0xC2 && lead <= 0xDF ? 2 : lead >= 0xE0 && lead <= 0xEF ? 3 : 4;
    if (lead < 0xC2 || lead > 0xF4) return 0;
    const auto [low, high] = second_byte(lead);
    if (byte(i + 1) < low || byte(i + 1) > high) return 0;
    for (std::size_t k = 2; k < length; ++k)
        if (byte(i + k) < 0x80 || byte(i + k) > 0xBF) return 0;
    return length;
}

std::string valid_utf8(std::string_view text) {
    std::string out;
    for (std::size_t i = 0; i < text.size();) {
        const std::size_t length = character(text, i);
        out += length == 0 ? "\xEF\xBF\xBD" : text.substr(i, length);
        i += length == 0 ? 1 : length;
    }
    return out;
}

bool is_acted_on(std::string_view one) {
    const auto is_from = [&](std::string_view first, std::string_view last) { return one >= first && one <= last; };
    return (one.size() == 1 && (one < " " || one == "\x7F")) || is_from("\u0080", "\u009F") || one == "\u061C" ||
           is_from("\u200E", "\u200F") || is_from("\u2028", "\u202E") || is_from("\u2066", "\u2069");
}

std::string plain(std::string_view text) {
    const std::string line = one_line(valid_utf8(text));
    std::string out;
    for (std::size_t i = 0, length = 0; i < line.size(); i += length) {
        length = character(line, i);
        const std::string_view one = std::string_view(line).substr(i, length);
        out += is_acted_on(one) || (one >= "\uFFFE" && one <= "\uFFFF") ? "\uFFFD" : one;
    }
    return out;
}

std::string brief(std::string_view text) {
    std::size_t shown = text.size();
    if (shown > kShown) {
        for (shown = kShown; shown > kShown - 4 && continues_character(text[shown]);) --shown;
    }
    return one_line(text.substr(0, shown)) + (shown < text.size() ? "..." : "");
}

std::string quote(std::string_view text, char mark) { return mark + brief(text) + mark; }

std::string_view nearest(std::string_view word, std::span<const std::string_view> candidates) {
    std::string_view best;
    std::size_t least = kLongestWord;
    for (const std::string_view candidate : candidates) {
        const std::size_t apart = distance(word, candidate);
        if (apart < least) {
            least = apart;
            best = candidate;
        }
    }
    return best;
}

std::string pointer_token(std::string_view key) {
    std::string out;
    for (const char c : key) {
        if (c == '~') {
            out += "~0";
        } else if (c == '/') {
            out += "~1";
        } else {
            out += c;
        }
    }
    return out;
}

}  // namespace curb::policy
