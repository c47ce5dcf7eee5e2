#include "policy/values/size.hpp"

#include <limits>
#include <vector>

#include "catch.hpp"

using namespace curb::policy;

namespace {

constexpr Bytes kMost = std::numeric_limits<Bytes>::max();
constexpr Bytes kH100 = Bytes{81'559} * MiB;

Bytes bytes_of(const std::string &text) {
    const auto size = parse_size(text);
    INFO(text << ": " << error_of(size));
    REQUIRE(size);
    REQUIRE(size->unit == Size::Unit::bytes);
    return size->amount;
}
std::string error_of_size(const std::string &text) { return error_of(parse_size(text)); }

}  // namespace

TEST_CASE("A size is a number with a binary unit, long or short; fractions are exact and rounded down to the byte") {
    const std::pair<std::string, Bytes> sizes[] = {
        {"8GiB", 8 * GiB},
        {"8 GiB", 8 * GiB},
        {"8G", 8 * GiB},
        {"512MiB", 512 * MiB},
        {"512M", 512 * MiB},
        {"4KiB", 4096},
        {"4K", 4096},
        {"2TiB", 2048 * GiB},
        {"17B", 17},
        {"0B", 0},
        {"0", 0},
        {"007MiB", 7 * MiB},
        {"1.5GiB", GiB + GiB / 2},
        {"1.1KiB", 1126},                      // 1126.4
        {"0.1GiB", 107'374'182},               // 107374182.4
        {"0.3TiB", 329'853'488'332},           // 329853488332.8
        {"0.999999999999999999GiB", GiB - 1},  // 18 decimals; a double would give 1
        {"1.000000000000000000000GiB", GiB},   // zeros at the end do not count as decimals
        {"1." + std::string(18, '5') + "000GiB", 1'670'265'059},
        {"3.0B", 3},
        {"18446744073709551615B", kMost},
        {"16777215.9TiB", Bytes{16'777'215} * 1024 * GiB + 989'560'464'998},
    };
    for (const auto &[text, bytes] : sizes) CHECK(bytes_of(text) == bytes);
    CHECK_THAT(error_of_size("1." + std::string(19, '5') + "GiB"), contains("too many decimals"));
    for (const char *text : {"18446744073709551616B", "16777216TiB", "99999999999999999999999999999999GiB"})
        CHECK_THAT(error_of_size(text), contains("too large"));
}

TEST_CASE("A percentage is of the device, to two decimals, at most all of it") {
    CHECK(parse_size("75%")->on(kH100) == Bytes{61'169} * MiB + MiB / 4);
    CHECK(parse_size("12.50 %")->on(80 * GiB) == 10 * GiB);
    CHECK(parse_size("0.01%")->on(10'000) == 1);
    CHECK(parse_size("0%")->on(kH100) == 0);
    CHECK(parse_size("99.99%")->on(9'999) == 9'998);  // 9998.0001, rounded down
    CHECK(parse_size("100%")->on(kMost) == kMost);
    CHECK(parse_size("50%")->on(kMost) == kMost / 2);
    CHECK(Size{Size::Unit::basis_points, kMost}.on(kMost) == kMost);
    CHECK(Size{Size::Unit::bytes, kMost}.on(0) == kMost);
    CHECK_THAT(error_of_size("100.01%"), contains("more than the device has") && contains("\"100%\""));
    CHECK_THAT(error_of_size("99999999999999999999%"), contains("more than the device has"));
    CHECK_THAT(error_of_size("12.345%"), contains("two decimals"));
}

TEST_CASE("The error for a misspelt size, or one without a unit, suggests the right one") {
    struct Row {
        std::string text, wrong, meant;
    };
    for (const auto &[text, wrong, meant] : std::vector<Row>{
             {"8Gib", "is not a size", "8GiB"},
             {"8gib", "is not a size", "8GiB"},
             {"8GB", "is not a size", "8GiB"},
             {"512mb", "is not a size", "512MiB"},
             {"8 gb", "is not a size", "8GiB"},
             {" 8GiB", "is not a size", "8GiB"},
             {"8GiB ", "is not a size", "8GiB"},
             {"1,5GiB", "is not a size", "1.5GiB"},
             {"1,5", "is not a size", "1.5GiB"},
             {".5GiB", "is not a size", "0.5GiB"},
             {"75 percent", "is not a size", "75%"},
             {"16Ti", "is not a size", "16TiB"},
             {"100 bytes", "is not a size", "100B"},
             {"8", "has no unit", "8GiB"},
             {"8 ", "has no unit", "8GiB"},
             {"0.5", "has no unit", "0.5GiB"},
             {"80", "has no unit", "80GiB"},
             {"512", "has no unit", "512MiB"},
             {"16384", "has no unit", "16384MiB"},
             {"8589934592", "has no unit", "8GiB"},
             {"8589934593", "has no unit", "8589934593B"},
             {"0.0", "has no unit", "0B"},
         }) {
        CHECK(error_of_size(text) == "'" + text + "' " + wrong + "; did you mean \"" + meant + "\"?");
        CHECK(parse_size(meant));
    }
    CHECK_THAT(error_of_size("18446744073709551616"), contains("has no unit; write a number and a unit"));
}

TEST_CASE("The error for any other text says what is wrong or has an example, and never suggests a wrong size") {
    for (const char *text :
         {"",      " ", "GiB", "8GiBs", "8XiB", "+8GiB",     "0x10",         "1e3",      "8..5GiB", "8.",  "8.GiB",
          "1_000", "-", "--8", "%",     "8%%",  "8GiB 8GiB", "8\xC2\xA0GiB", "\xFF\xFE", "all",     "inf", "8G iB"})
        CHECK_THAT(error_of_size(text), contains("\"8GiB\""));
    for (const char *text : {"120 percent", "1.5 bytes", "1,000MiB"})  // a thousand, or one?
        CHECK_THAT(error_of_size(text), !contains("none") && !contains("did you mean"));
    for (const std::string text : {"-1", "-8GiB", "-50%"})
        CHECK(error_of_size(text) == text + ": sizes are not negative");
    CHECK_THAT(error_of_size("1.5B"), contains("whole number of bytes") && contains("1.5GiB"));
}

TEST_CASE("Errors about sizes are short and on one line, whatever the text is") {
    for (const std::string beginning : {"8", "-8"}) {
        const std::string ugly = beginning + "\n\t\x01" + std::string(1, '\0') + std::string(10'000, 'x');
        const std::string error = error_of_size(ugly);
        CHECK_THAT(error, contains("\\x0A\\x09\\x01\\x00"));
        CHECK(error.find('\n') == std::string::npos);
        CHECK(error.size() < 250);
    }
}

TEST_CASE("An exactly formatted size parses back as the same number") {
    CHECK(format_exact(0) == "0B");
    CHECK(format_exact(8 * GiB) == "8GiB");
    CHECK(format_exact(1536 * MiB) == "1536MiB");
    CHECK(format_exact(12'345) == "12345B");
    CHECK(format_exact(2048 * GiB) == "2TiB");
    Bytes n = 1;
    for (int i = 0; i < 2'000; ++i) {
        n = n * 6'364'136'223'846'793'005ULL + 1'442'695'040'888'963'407ULL;
        const Bytes number = (n >> (n % 64)) << (n % 31);
        CHECK(bytes_of(format_exact(number)) == number);
    }
    CHECK(bytes_of(format_exact(kMost)) == kMost);
}

TEST_CASE("format_up() writes at most two decimals, and is never read back as less") {
    for (const auto &[bytes, text] : std::vector<std::pair<Bytes, const char *>>{{0, "0B"},
                                                                                 {1023, "1023B"},
                                                                                 {5 * GiB, "5GiB"},
                                                                                 {5 * GiB + 1, "5.01GiB"},
                                                                                 {6050 * MiB, "5.91GiB"},
                                                                                 {6052 * MiB, "5.92GiB"},
                                                                                 {812 * MiB, "812MiB"},
                                                                                 {GiB - 1, "1GiB"}})
        CHECK(format_up(bytes) == text);
    for (Bytes bytes = 1; bytes < Bytes{1} << 45; bytes += bytes / 7 + 1) {
        CAPTURE(bytes);
        const auto read = parse_size(format_up(bytes));
        REQUIRE(read);
        CHECK(read->amount >= bytes);
    }
}

TEST_CASE("format_human() writes at most two decimals and a number below 1024, which can be parsed again") {
    const std::pair<Bytes, const char *> sizes[] = {{0, "0 B"},
                                                    {1023, "1023 B"},
                                                    {1024, "1 KiB"},
                                                    {3'672'197'038, "3.42 GiB"},
                                                    {512 * MiB, "512 MiB"},
                                                    {1536 * MiB, "1.5 GiB"},
                                                    {GiB - 1, "1 GiB"},
                                                    {1024 * GiB - 1, "1 TiB"}};
    for (const auto &[bytes, text] : sizes) {
        CHECK(format_human(bytes) == text);
        CHECK(parse_size(text));
    }
    CHECK(format_human(kMost) == "16777216 TiB");
}

TEST_CASE("A size is formatted as it was written") {
    for (const char *text : {"8GiB", "75%", "12.5%", "0.01%", "12.25%", "0%", "100%", "0B"}) {
        CHECK(format(*parse_size(text)) == text);
    }
}
