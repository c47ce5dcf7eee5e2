#include "policy/values/duration.hpp"

#include <cstdint>

#include "catch.hpp"

using namespace curb::policy;
using namespace std::chrono_literals;

namespace {

Duration duration_of(const std::string &text) {
    const auto duration = parse_duration(text);
    INFO(text << ": " << error_of(duration));
    REQUIRE(duration);
    return *duration;
}

std::string error_of_time(const std::string &text) { return error_of(parse_duration(text)); }

}  // namespace

TEST_CASE("A duration is a whole number and a unit, and written in the largest unit that leaves one") {
    const std::pair<const char *, Duration> written[] = {{"0s", 0ms},  {"1ms", 1ms}, {"1500ms", 1'500ms},
                                                         {"90s", 90s}, {"1m", 60s},  {"2h", 2h},
                                                         {"36h", 36h}, {"2d", 48h},  {"365d", kLongest}};
    for (const auto &[text, duration] : written) {
        CHECK(duration_of(text) == duration);
        CHECK(format(duration) == text);
    }
    CHECK(duration_of("0d") == 0s);
    CHECK(duration_of("007s") == 7s);
    CHECK(duration_of(std::string(1'000, '0') + "7s") == 7s);
}

TEST_CASE("A duration is a year at most, in every unit") {
    const auto [longest, longer] =
        GENERATE(table<const char *, const char *>({{"31536000000ms", "31536000001ms"},
                                                    {"31536000s", "31536001s"},
                                                    {"525600m", "525601m"},
                                                    {"8760h", "8761h"},
                                                    {"365d", "366d"},
                                                    {"365d", "99999999999999999999999999999999d"},
                                                    {"365d", "18446744073709551616ms"},   // 2^64
                                                    {"365d", "9223372036854775808s"}}));  // 2^63
    CHECK(duration_of(longest) == kLongest);
    CHECK(error_of_time(longer) == "'" + std::string(longer) + "' is longer than a year");
}

TEST_CASE("The error for a misspelt duration suggests the right one") {
    const auto [text, meant] = GENERATE(table<const char *, const char *>({{"30 s", "30s"},
                                                                           {"30S", "30s"},
                                                                           {"30sec", "30s"},
                                                                           {"30 Seconds", "30s"},
                                                                           {"1 minute", "1m"},
                                                                           {"10min", "10m"},
                                                                           {"2hours", "2h"},
                                                                           {"3 Days", "3d"},
                                                                           {"250 MS", "250ms"},
                                                                           {"250 milliseconds", "250ms"}}));
    CHECK(error_of_time(text) == "'" + std::string(text) + "' is not a time; did you mean \"" + meant + "\"?");
    CHECK(parse_duration(meant));
}

TEST_CASE(
    "The error for a number without a unit suggests seconds, if that is valid; a negative time has its own error") {
    CHECK(error_of_time("30") == "'30' has no unit; did you mean \"30s\"?");
    CHECK(error_of_time("0") == "'0' has no unit; did you mean \"0s\"?");
    for (const char *text : {"99999999999", "99999999999 sec", "366 days", "99999999999999999999999999S"}) {
        INFO(text);
        CHECK_THAT(error_of_time(text), !contains("did you mean") && contains("\"30s\""));
    }
    for (const std::string text : {"-1s", "-30"}) CHECK(error_of_time(text) == text + ": times are not negative");
}

TEST_CASE("The error for any other text has examples of durations") {
    const auto text = GENERATE(as<std::string>{}, "", " ", "s", "ms", "-", "-s", "+30s", "1.5h", ".5s", "1h30m", " 30s",
                               "30s ", "30 ", "1e3s", "0x10s", "30w", "30us", "never", "none", "inf", "30\xC2\xB5s",
                               "30s 30s", "1,5s", "30 s s");
    CHECK_THAT(error_of_time(text), contains("is not a time; write") && contains("\"30s\", \"10m\""));
}

TEST_CASE("Errors about durations are short and on one line, whatever the text is") {
    for (const std::string beginning : {"", "-", "30", "-30"}) {
        const std::string error = error_of_time(beginning + "\n\t" + std::string(1, '\0') + std::string(10'000, 'x'));
        INFO(error);
        CHECK_THAT(error, contains("\\x0A\\x09\\x00"));
        CHECK(error.find('\n') == std::string::npos);
        CHECK(error.size() < 250);
    }
}

TEST_CASE("Time left is rounded up to what a reader needs") {
    CHECK(format_time_left(1ms) == "0.1s");
    CHECK(format_time_left(4'130ms) == "4.2s");
    CHECK(format_time_left(5s) == "5s");
    CHECK(format_time_left(9'990ms) == "10s");
    CHECK(format_time_left(94'100ms) == "95s");
    CHECK(format_time_left(121s) == "3m");
    CHECK(format_time_left(3'598'980ms) == "60m");
    CHECK(format_time_left(121min) == "3h");
}

TEST_CASE("A duration that is formatted parses back as the same") {
    std::uint64_t n = 1;
    for (int i = 0; i < 5'000; ++i) {
        n = n * 6'364'136'223'846'793'005ULL + 1'442'695'040'888'963'407ULL;
        const auto most = static_cast<std::uint64_t>(kLongest.count());
        const Duration duration(static_cast<std::int64_t>((n >> (n % 64)) % (most + 1)));
        for (const Duration each : {duration, duration / 1'000 * 1'000, duration / 60'000 * 60'000}) {
            const auto again = parse_duration(format(each));
            if (again && *again == each) continue;  // Catch2's assertions are slow
            FAIL(format(each));
        }
    }
}
