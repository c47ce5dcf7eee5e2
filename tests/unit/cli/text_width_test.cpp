// The columns that a text takes in a terminal, and texts that are cut to fit.
#include "terminal/text_width.hpp"

#include "catch.hpp"

using namespace curb::cli;

TEST_CASE("ideographs and emoji take two columns, marks none, everything else one") {
    CHECK(width_of("") == 0);
    CHECK(width_of("python3") == 7);
    CHECK(width_of("Zoë") == 3);
    CHECK(width_of("e\u0308") == 1);
    CHECK(width_of("訓練") == 4);
    CHECK(width_of("한글") == 4);
    CHECK(width_of("🚀") == 2);
    CHECK(width_of("\u200B") == 0);
    CHECK(width_of("\xFF\xC3") == 2);  // no UTF-8, cut short
    CHECK(width_of("\xE8\xA8") == 2);
}

TEST_CASE("a clipped text ends in an ellipsis, fits its width, and splits no character") {
    CHECK(clipped("python3", 7) == "python3");
    CHECK(clipped("python3", 6) == "pytho…");
    CHECK(clipped("python3", 1) == "…");
    CHECK(clipped("python3", 0).empty());
    CHECK(clipped("訓練機", 6) == "訓練機");
    CHECK(clipped("訓練機", 5) == "訓練…");
    CHECK(clipped("訓練機", 4) == "訓…");
    for (std::size_t room = 0; room < 12; ++room) CHECK(width_of(clipped("a訓e\u0308🚀b練", room)) <= room);
}

TEST_CASE("padded() fills up with blanks to a number of visible columns") {
    CHECK(padded("訓", 4) == "訓  ");
    CHECK(padded("訓", 4, true) == "  訓");
    CHECK(padded("python3", 3) == "python3");
}

TEST_CASE("aligned() puts cells below each other by their columns, and lets no long cell push the others away") {
    CHECK(aligned({{"訓練", "1"}, {"Zoë", "22"}, {"ab", "3"}}) == "訓練  1\nZoë   22\nab    3\n");
    const std::string longest = "訓練訓練訓練訓練訓練訓練訓練訓練訓練";  // 36 columns
    CHECK(aligned({{longest, "1"}, {"a", "2"}}) == longest + "  1\na" + std::string(37, ' ') + "2\n");
    CHECK(aligned({{longest + "-", "1"}, {"a", "2"}}) == longest + "-  1\na  2\n");
}

TEST_CASE("lines are broken at blanks, and words that are too long for a line anywhere") {
    CHECK(wrapped("one two", 7, 2) == "one two\n");
    CHECK(wrapped("one two three", 9, 0) == "one two\nthree\n");
    CHECK(wrapped("one two three", 11, 2) == "one two\n  three\n");
    CHECK(wrapped("one two three", 3, 0) == "one\ntwo\nthr\nee\n");
    CHECK(wrapped("訓練機", 4, 0) == "訓練\n機\n");
    CHECK(wrapped("訓練機", 1, 0) == "訓\n練\n機\n");  // wider than the line, but not lost
    CHECK(wrapped("", 5, 0) == "\n");
}

TEST_CASE("plain() shows control characters as text") {
    CHECK(plain("a\x1b[2Jb\n") == "a\\x1B[2Jb\\x0A");
    CHECK(plain("a\xC2\x9B"
                "b") == "a\uFFFDb");
    CHECK(plain("\u202Eabc\u2028\u061C") == "\uFFFDabc\uFFFD\uFFFD");
    CHECK(plain("\uFFFE\uFFFF\uFFFD") == "\uFFFD\uFFFD\uFFFD");  // noncharacters, which XML refuses
    CHECK(plain("Zoë 訓練 🚀") == "Zoë 訓練 🚀");
    CHECK(plain("\xFF") == "\uFFFD");
}
