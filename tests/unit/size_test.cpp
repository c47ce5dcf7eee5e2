#include "policy/size.hpp"

#include <limits>

#include "catch.hpp"

using namespace curb::policy;

namespace {

constexpr Bytes kMost = std::numeric_limits<Bytes>::max();
constexpr Bytes kH100 = Bytes{81'559} * MiB;

Bytes bytes_of(const std::string &text) {
    const auto size = parse_size(text);
    INFO(text << ": " << (size ? "read" : size.error()));
    REQUIRE(size);
    REQUIRE(size->unit == Size::Unit::bytes);
    return size->amount;
}

std::string error_of(const std::string &text) {
    const auto size = parse_size(text);
    INFO(text);
    REQUIRE_FALSE(size);
    return size.error();
}

}  // namespace

TEST_CASE("A size is a number with a binary unit, long or short") {
    CHECK(bytes_of("8GiB") == 8 * GiB);
    CHECK(bytes_of("8 GiB") == 8 * GiB);
    CHECK(bytes_of("8G") == 8 * GiB);
    CHECK(bytes_of("512MiB") == 512 * MiB);
    CHECK(bytes_of("512M") == 512 * MiB);
    CHECK(bytes_of("4KiB") == 4096);
    CHECK(bytes_of("4K") == 4096);
    CHECK(bytes_of("2TiB") == 2048 * GiB);
    CHECK(bytes_of("17B") == 17);
    CHECK(bytes_of("1073741824B") == GiB);
    CHECK(bytes_of("0B") == 0);
    CHECK(bytes_of("007MiB") == 7 * MiB);
}

TEST_CASE("Fractions of a unit are exact to the byte and rounded down") {
    CHECK(bytes_of("1.5GiB") == GiB + GiB / 2);
    CHECK(bytes_of("0.25MiB") == 256 * KiB);
    CHECK(bytes_of("1.1KiB") == 1126);                      // 1126.4
    CHECK(bytes_of("0.1GiB") == 107'374'182);               // 107374182.4
    CHECK(bytes_of("0.3TiB") == 329'853'488'332);           // 329853488332.8
    CHECK(bytes_of("0.999999999999999999GiB") == GiB - 1);  // 18 decimals, where a double says 1
    CHECK(bytes_of("1.000000000000000000000GiB") == GiB);
    CHECK(bytes_of("3.0B") == 3);
}

TEST_CASE("Decimals are 18 at most, trailing zeros left out") {
    CHECK(bytes_of("1." + std::string(18, '5') + "GiB") == 1'670'265'059);
    CHECK(bytes_of("1." + std::string(18, '5') + "000GiB") == 1'670'265'059);
    CHECK_THAT(error_of("1." + std::string(19, '5') + "GiB"), contains("too many decimals"));
}

TEST_CASE("The largest size is the largest number of bytes, and one more is refused") {
    CHECK(bytes_of("18446744073709551615B") == kMost);
    CHECK(bytes_of("16777215.9TiB") == Bytes{16'777'215} * 1024 * GiB + 989'560'464'998);
    CHECK_THAT(error_of("18446744073709551616B"), contains("too large"));
    CHECK_THAT(error_of("16777216TiB"), contains("too large"));
    CHECK_THAT(error_of("17179869184GiB"), contains("too large"));
    CHECK_THAT(error_of("99999999999999999999999999999999GiB"), contains("too large"));
}

TEST_CASE("A percentage is of the device, to two decimals") {
    CHECK(parse_size("75%")->on(kH100) == Bytes{61'169} * MiB + MiB / 4);
    CHECK(parse_size("12.5%")->on(80 * GiB) == 10 * GiB);
    CHECK(parse_size("12.50 %")->on(80 * GiB) == 10 * GiB);
    CHECK(parse_size("0.01%")->on(10'000) == 1);
    CHECK(parse_size("0%")->on(kH100) == 0);
    CHECK(parse_size("100%")->on(kH100) == kH100);
    CHECK(parse_size("99.99%")->on(9'999) == 9'998);  // 9998.0001, and never up
}

TEST_CASE("A percentage of the largest number does not overflow") {
    CHECK(parse_size("100%")->on(kMost) == kMost);
    CHECK(parse_size("50%")->on(kMost) == kMost / 2);
    CHECK(Size{Size::Unit::basis_points, kMost}.on(kMost) == kMost);
    CHECK(Size{Size::Unit::bytes, kMost}.on(0) == kMost);
}

TEST_CASE("More than the device and finer than two decimals are no percentages") {
    CHECK_THAT(error_of("100.01%"), contains("more than the device has") && contains("\"100%\""));
    CHECK_THAT(error_of("120%"), contains("more than the device has"));
    CHECK_THAT(error_of("99999999999999999999%"), contains("more than the device has"));
    CHECK_THAT(error_of("12.345%"), contains("two decimals"));
}

TEST_CASE("A slip is answered with the size that was meant") {
    const auto [text, meant] = GENERATE(table<std::string, std::string>({{"8Gib", "8GiB"},
                                                                         {"8gib", "8GiB"},
                                                                         {"8GB", "8GiB"},
                                                                         {"8g", "8GiB"},
                                                                         {"512mb", "512MiB"},
                                                                         {"8 gb", "8GiB"},
                                                                         {" 8GiB", "8GiB"},
                                                                         {"8GiB ", "8GiB"},
                                                                         {"1,5GiB", "1.5GiB"},
                                                                         {"1,5", "1.5GiB"},
                                                                         {".5GiB", "0.5GiB"},
                                                                         {"75 percent", "75%"},
                                                                         {"16Ti", "16TiB"},
                                                                         {"100 bytes", "100B"}}));
    CHECK(error_of(text) == "'" + text + "' is not a size; did you mean \"" + meant + "\"?");
    CHECK(parse_size(meant));
}

TEST_CASE("A number without a unit is no size, and the suggestion is what people mean by it") {
    const auto [text, meant] = GENERATE(table<std::string, std::string>({{"8", "8GiB"},
                                                                         {"8 ", "8GiB"},
                                                                         {"0.5", "0.5GiB"},
                                                                         {"80", "80GiB"},
                                                                         {"512", "512MiB"},
                                                                         {"16384", "16384MiB"},
                                                                         {"8589934592", "8GiB"},
                                                                         {"8589934593", "8589934593B"},
                                                                         {"0", "0B"},
                                                                         {"0.0", "0B"}}));
    CHECK(error_of(text) == "'" + text + "' has no unit; did you mean \"" + meant + "\"?");
    CHECK(parse_size(meant));
    CHECK_THAT(error_of("18446744073709551616"), contains("has no unit; write a number and a unit"));
}

TEST_CASE("What is suggested is a size itself") {
    CHECK_THAT(error_of("120 percent"), !contains("did you mean"));
    CHECK_THAT(error_of("1.5 bytes"), !contains("did you mean"));
    CHECK_THAT(error_of("1,000MiB"), !contains("did you mean"));  // a thousand, or one?
}

TEST_CASE("Negative sizes are called that") {
    CHECK(error_of("-1") == "-1: sizes are not negative");
    CHECK(error_of("-8GiB") == "-8GiB: sizes are not negative");
    CHECK_THAT(error_of("-50%"), contains("not negative"));
}

TEST_CASE("Whatever else is no size is refused with an example of one") {
    const auto text = GENERATE(as<std::string>{}, "", " ", "GiB", "8GiBs", "8XiB", "+8GiB", "0x10", "1e3", "8..5GiB",
                               "8.", "8.GiB", "1_000", "-", "--8", "%", "8%%", "8GiB 8GiB", "8\xC2\xA0GiB", "\xFF\xFE",
                               "all", "none", "inf", "nan", "8G iB");
    CHECK_THAT(error_of(text), contains("\"8GiB\""));
}

TEST_CASE("Bytes are whole") { CHECK_THAT(error_of("1.5B"), contains("whole number of bytes") && contains("1.5GiB")); }

TEST_CASE("Messages stay on one line and short, whatever was written") {
    for (const std::string beginning : {"8", "-8"}) {
        const std::string ugly = beginning + "\n\t\x01" + std::string(1, '\0') + std::string(10'000, 'x');
        const std::string error = error_of(ugly);
        CHECK_THAT(error, contains("\\x0A\\x09\\x01\\x00"));
        CHECK(error.find('\n') == std::string::npos);
        CHECK(error.size() < 250);
    }
}

TEST_CASE("What is written exactly is read as the same number") {
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

TEST_CASE("Of a list the lowest of each unit stays, and which of them holds depends on the device") {
    const auto text_of = [](const char *list) { return format(parse_lowest(list).value()); };
    CHECK(text_of("8GiB") == "8GiB");
    CHECK(text_of("25%,6GiB") == "25%,6GiB");
    CHECK(text_of("8GiB,2GiB,4GiB") == "2GiB");
    CHECK(text_of("50%,6GiB,25%,8GiB") == "25%,6GiB");
    CHECK(lowest_on(parse_lowest("25%,6GiB").value(), 80 * GiB) == 6 * GiB);
    CHECK(lowest_on(parse_lowest("25%,6GiB").value(), 16 * GiB) == 4 * GiB);
    for (const char *wrong : {"", ",", "8GiB,", ",8GiB", "8GiB,,2GiB", "8GiB,2Gib", "8GiB;2GiB", "8GiB, 2GiB"}) {
        INFO(wrong);
        CHECK_FALSE(parse_lowest(wrong));
    }
}

TEST_CASE("For people, sizes have two decimals at most and a unit below 1024") {
    CHECK(format_human(0) == "0 B");
    CHECK(format_human(1023) == "1023 B");
    CHECK(format_human(1024) == "1 KiB");
    CHECK(format_human(3'672'197'038) == "3.42 GiB");
    CHECK(format_human(512 * MiB) == "512 MiB");
    CHECK(format_human(1536 * MiB) == "1.5 GiB");
    CHECK(format_human(GiB - 1) == "1 GiB");
    CHECK(format_human(1024 * GiB - 1) == "1 TiB");
    CHECK(format_human(kMost) == "16777216 TiB");
}

TEST_CASE("What is written for people can be read again") {
    for (const Bytes bytes : {Bytes{0}, Bytes{700}, Bytes{3'672'197'038}, 512 * MiB, 80 * GiB}) {
        CHECK(parse_size(format_human(bytes)));
    }
}

TEST_CASE("A size is written as it was read") {
    for (const char *text : {"8GiB", "75%", "12.5%", "0.01%", "12.25%", "0%", "100%", "0B"}) {
        CHECK(format(*parse_size(text)) == text);
    }
}
