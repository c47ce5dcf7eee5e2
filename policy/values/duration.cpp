#include "policy/values/duration.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

#include "policy/values/words.hpp"

namespace curb::policy {
namespace {

struct TimeUnit {
    std::string_view name;
    std::int64_t milliseconds;
};
constexpr std::array<TimeUnit, 5> kTimeUnits{
    {{"d", 86'400'000}, {"h", 3'600'000}, {"m", 60'000}, {"s", 1'000}, {"ms", 1}}};

// Other spellings of units, in lower case.
struct TimeAlias {
    std::string_view word;
    std::string_view meant;
};
constexpr std::array<TimeAlias, 14> kTimeAliases{{{"sec", "s"},
                                                  {"secs", "s"},
                                                  {"second", "s"},
                                                  {"seconds", "s"},
                                                  {"min", "m"},
                                                  {"mins", "m"},
                                                  {"minute", "m"},
                                                  {"minutes", "m"},
                                                  {"hour", "h"},
                                                  {"hours", "h"},
                                                  {"day", "d"},
                                                  {"days", "d"},
                                                  {"msec", "ms"},
                                                  {"milliseconds", "ms"}}};

constexpr std::string_view kRightTime = R"(write a whole number and a unit, as in "30s", "10m", "2h" or "500ms")";

std::string_view digits_of(std::string_view text) {
    const std::size_t end = text.find_first_not_of("0123456789");
    return text.substr(0, end);
}

const TimeUnit *unit_named(std::string_view name) {
    for (const TimeUnit &unit : kTimeUnits)
        if (unit.name == name) return &unit;
    return nullptr;
}

// Reads digits. Returns nullopt if the duration is longer than kLongest in that unit.
std::optional<Duration> duration(std::string_view digits, const TimeUnit &unit) {
    const auto amount = parse_number<std::int64_t>(digits);
    if (!amount || *amount > kLongest.count() / unit.milliseconds) return std::nullopt;
    return Duration(*amount * unit.milliseconds);
}

// Returns the duration that an invalid text probably means; empty if unknown.
std::string meant(std::string_view digits, std::string_view rest) {
    std::string word = lower_case(rest.substr(std::min(rest.find_first_not_of(' '), rest.size())));
    if (rest.empty()) word = "s";
    for (const TimeAlias &alias : kTimeAliases)
        if (word == alias.word) word = alias.meant;
    const TimeUnit *unit = digits.empty() ? nullptr : unit_named(word);
    return unit && duration(digits, *unit) ? std::string(digits) + word : std::string();
}

// Reads a duration. `right` says in the error how to write one.
Result<Duration, std::string> parse_time(std::string_view text, std::string_view right) {
    if (text.starts_with('-') && !digits_of(text.substr(1)).empty()) return brief(text) + ": times are not negative";
    const std::string_view digits = digits_of(text);
    const std::string_view rest = text.substr(digits.size());
    if (const TimeUnit *unit = digits.empty() ? nullptr : unit_named(rest)) {
        if (const auto out = duration(digits, *unit)) return *out;
        return quote(text) + " is longer than a year";
    }
    if (const std::string guess = meant(digits, rest); !guess.empty())
        return quote(text) + (rest.empty() ? " has no unit" : " is not a time") + "; did you mean \"" + guess + "\"?";
    return quote(text) + " is not a time; " + std::string(right);
}

}  // namespace

Result<Duration, std::string> parse_duration(std::string_view text) { return parse_time(text, kRightTime); }

Result<Duration, std::string> parse_delay(std::string_view text) {
    if (text == "never") return kNever;
    return parse_time(text, R"(write a whole number and a unit, as in "30s", or "never")");
}

std::string format(Duration duration) {
    for (const TimeUnit &unit : kTimeUnits) {
        const std::int64_t amount = duration.count() / unit.milliseconds;
        if (amount != 0 && duration.count() % unit.milliseconds == 0)
            return std::to_string(amount) + std::string(unit.name);
    }
    return "0s";
}

std::string format_time_left(Duration left) {
    using namespace std::chrono_literals;
    const auto tenths = std::chrono::ceil<std::chrono::duration<std::int64_t, std::deci>>(left).count();
    if (left < 10s && tenths % 10 != 0) return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + "s";
    if (left <= 2min) return format(std::chrono::ceil<std::chrono::seconds>(left));
    const auto minutes = std::chrono::ceil<std::chrono::minutes>(left);
    return minutes <= 2h ? std::to_string(minutes.count()) + "m"
                         : std::to_string(std::chrono::ceil<std::chrono::hours>(left).count()) + "h";
}

}  // namespace curb::policy
