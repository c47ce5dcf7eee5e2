// Integers only: floating point could round a cap.
#include "policy/values/size.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <optional>
#include <utility>

#include "policy/values/words.hpp"

namespace curb::policy {
namespace {

constexpr std::uint64_t kWhole = 10'000;  // basis points of a whole device
constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
constexpr std::size_t kDecimals = 18;  // 10^18 doubled still fits 64 bits

constexpr std::string_view kRight = R"(write a number and a unit, as in "8GiB", "512MiB" or "75%")";

struct Unit {
    std::string_view name;   // as it is printed
    std::string_view brief;  // its short form
    unsigned shift;          // bytes of it: 1 << shift
};
constexpr std::array<Unit, 5> kUnits{
    {{"TiB", "T", 40}, {"GiB", "G", 30}, {"MiB", "M", 20}, {"KiB", "K", 10}, {"B", "B", 0}}};

// Other spellings of units, in lower case. curb suggests the unit but does not accept these: to some, "8GB" is 7% less
// than "8GiB".
struct Alias {
    std::string_view word;
    std::string_view meant;
};
constexpr std::array<Alias, 22> kAliases{
    {{"t", "TiB"},   {"tb", "TiB"},  {"ti", "TiB"},    {"tib", "TiB"},      {"g", "GiB"},  {"gb", "GiB"},
     {"gi", "GiB"},  {"gib", "GiB"}, {"m", "MiB"},     {"mb", "MiB"},       {"mi", "MiB"}, {"mib", "MiB"},
     {"k", "KiB"},   {"kb", "KiB"},  {"ki", "KiB"},    {"kib", "KiB"},      {"b", "B"},    {"byte", "B"},
     {"bytes", "B"}, {"%", "%"},     {"percent", "%"}, {"gigabytes", "GiB"}}};

// The parts of a text: "12.5 GiB" is 12, "5" and "GiB".
struct Parts {
    std::string_view whole;
    std::string_view decimals;
    std::string_view unit;
    bool point = false;
};

// Returns nullopt if the text does not begin with a number.
std::optional<Parts> take_apart(std::string_view text) {
    Parts parts;
    std::size_t at = 0;
    while (at < text.size() && is_digit(text[at])) ++at;
    if (at == 0) return std::nullopt;
    parts.whole = text.substr(0, at);
    if (at < text.size() && text[at] == '.') {
        parts.point = true;
        const std::size_t from = ++at;
        while (at < text.size() && is_digit(text[at])) ++at;
        parts.decimals = text.substr(from, at - from);
        if (parts.decimals.empty()) return std::nullopt;
    }
    const std::size_t unit = text.find_first_not_of(' ', at);
    parts.unit = text.substr(unit == std::string_view::npos ? at : unit);  // "8 GiB", but not "8 "
    return parts;
}

// Returns the integer part of 0.DECIMALS * 2^shift, computed exactly bit by bit. At most kDecimals digits.
std::uint64_t binary_fraction(std::string_view decimals, unsigned shift) {
    std::uint64_t rest = 0;
    std::uint64_t one = 1;
    for (const char c : decimals) {
        rest = rest * 10 + static_cast<std::uint64_t>(c - '0');
        one *= 10;
    }
    std::uint64_t bits = 0;
    for (unsigned i = 0; i < shift; ++i) {
        rest *= 2;
        bits = bits * 2 + (rest >= one ? 1 : 0);
        if (rest >= one) rest -= one;
    }
    return bits;
}

std::string_view without_trailing_zeros(std::string_view decimals) {
    return decimals.substr(0, decimals.find_last_not_of('0') + 1);
}

using Parsed = Result<Size, std::string>;

Parsed percentage(std::string_view text, const Parts &parts) {
    const std::string_view decimals = without_trailing_zeros(parts.decimals);
    if (decimals.size() > 2)
        return quote(text) + R"( is too fine: percentages have two decimals at most, as in "12.25%")";
    std::uint64_t hundredths = 0;
    for (std::size_t i = 0; i < 2; ++i) {
        hundredths = hundredths * 10 + (i < decimals.size() ? static_cast<std::uint64_t>(decimals[i] - '0') : 0);
    }
    const auto whole = parse_number<std::uint64_t>(parts.whole);
    if (!whole || *whole > 100 || *whole * 100 + hundredths > kWhole) {
        return quote(text) + R"( is more than the device has; "100%" is all of it)";
    }
    return Size{Size::Unit::basis_points, *whole * 100 + hundredths};
}

Parsed bytes(std::string_view text, const Parts &parts, unsigned shift) {
    const std::string_view decimals = without_trailing_zeros(parts.decimals);
    if (shift == 0 && !decimals.empty()) {
        return quote(text) + R"( is not a whole number of bytes; name a unit, as in "1.5GiB")";
    }
    if (decimals.size() > kDecimals) {
        return quote(text) + " has too many decimals: 18 at most";
    }
    const auto whole = parse_number<std::uint64_t>(parts.whole);
    const std::uint64_t fraction = binary_fraction(decimals, shift);
    if (!whole || *whole > kMost >> shift) {
        return quote(text) + " is too large: sizes end below 16777216TiB";
    }
    return Size{Size::Unit::bytes, (*whole << shift) + fraction};
}

// Returns nullopt if the unit is unknown.
std::optional<Parsed> in_known_unit(std::string_view text, const Parts &parts) {
    if (text == "0") return Parsed(Size{Size::Unit::bytes, 0});  // the same in every unit
    if (parts.unit == "%") return percentage(text, parts);
    for (const Unit &unit : kUnits) {
        if (parts.unit == unit.name || parts.unit == unit.brief) return bytes(text, parts, unit.shift);
    }
    return std::nullopt;
}

// "1,5" means 1.5; "1,000" is ambiguous.
std::string with_points(std::string_view text) {
    std::string out(text);
    const std::size_t comma = out.find(',');
    if (comma == std::string::npos) return out;
    const std::size_t end = out.find_first_not_of("0123456789", comma + 1);
    if ((end == std::string::npos ? out.size() : end) - comma - 1 != 3) out[comma] = '.';
    return out;
}

// Returns the size that a number without a unit probably means. No GPU has 512 GiB, and no cap is below a MiB.
std::string with_unit(const Parts &parts) {
    std::string number(parts.whole);
    if (parts.point) number.append(".").append(parts.decimals);
    if (number.find_first_of("123456789") == std::string::npos) return "0B";
    const auto whole = parse_number<std::uint64_t>(parts.whole);
    if (!whole || *whole >= MiB) return whole ? format_exact(*whole) : "";
    return number + (*whole < 512 ? "GiB" : "MiB");
}

// Returns the size that an invalid text probably means; empty if unknown.
std::string meant(std::string_view text) {
    std::string tidy = with_points(trimmed(text));
    if (!tidy.empty() && tidy.front() == '.') tidy.insert(0, 1, '0');
    const auto parts = take_apart(tidy);
    if (!parts) return {};
    const std::string unit = lower_case(trimmed(parts->unit));
    std::string guess(parts->whole);
    if (parts->point) guess.append(".").append(parts->decimals);
    for (const Alias &alias : kAliases) {
        if (unit == alias.word) guess += alias.meant;
    }
    const auto again = take_apart(guess);
    if (again->unit.empty()) return unit.empty() ? with_unit(*again) : "";
    return in_known_unit(guess, *again)->ok() ? guess : std::string();
}

Parsed parse(std::string_view text) {
    const std::string_view bare = trimmed(text);
    if (bare.empty()) return "the size is empty; " + std::string(kRight);
    if (bare.front() == '-' && take_apart(bare.substr(1))) return brief(bare) + ": sizes are not negative";
    if (const auto parts = take_apart(text)) {
        if (auto size = in_known_unit(text, *parts)) return std::move(*size);
    }
    const auto number = take_apart(bare);
    const std::string wrong = quote(text) + (number && number->unit.empty() ? " has no unit; " : " is not a size; ");
    const std::string guess = meant(text);
    return wrong + (guess.empty() ? std::string(kRight) : "did you mean \"" + guess + "\"?");
}

// Writes amount/100 with at most two decimals.
std::string hundredths(std::uint64_t amount) {
    std::string out = std::to_string(amount / 100);
    const auto rest = static_cast<unsigned>(amount % 100);
    if (rest == 0) return out;
    out += '.';
    out += static_cast<char>('0' + rest / 10);
    if (rest % 10 != 0) out += static_cast<char>('0' + rest % 10);
    return out;
}

enum class Rounded { nearest, up };

// Writes bytes in the largest unit of which there is one, with `between` before the unit.
std::string with_decimals(Bytes bytes, Rounded rounding, const char *between) {
    for (std::size_t i = 0; i < kUnits.size(); ++i) {
        const Bytes one = Bytes{1} << kUnits[i].shift;
        if (bytes < one && one != 1) continue;
        const Bytes more = rounding == Rounded::up ? one - 1 : one / 2;
        std::uint64_t rounded = bytes / one * 100 + (bytes % one * 100 + more) / one;
        // 1023.999 MiB would print as 1024 MiB: print 1 GiB.
        if (i > 0 && rounded >= 102'400) {
            --i;
            rounded = 100;
        }
        return hundredths(rounded) + between + std::string(kUnits[i].name);
    }
    return std::string("0") + between + "B";
}

}  // namespace

Bytes Size::on(Bytes device_total) const noexcept {
    if (unit == Unit::bytes) return amount;
    if (amount >= kWhole) return device_total;
    return device_total / kWhole * amount + device_total % kWhole * amount / kWhole;
}

Result<Size, std::string> parse_size(std::string_view text) { return parse(text); }

std::string format_exact(Bytes bytes) {
    for (const Unit &unit : kUnits) {
        const Bytes one = Bytes{1} << unit.shift;
        if (bytes >= one && bytes % one == 0) return std::to_string(bytes / one).append(unit.name);
    }
    return "0B";
}

std::string format_human(Bytes bytes) { return with_decimals(bytes, Rounded::nearest, " "); }
std::string format_up(Bytes bytes) { return with_decimals(bytes, Rounded::up, ""); }

std::string format(const Size &size) {
    return size.unit == Size::Unit::bytes ? format_exact(size.amount) : hundredths(size.amount) + "%";
}

}  // namespace curb::policy
