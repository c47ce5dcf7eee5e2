// Checks the corpus of the fuzzer of the control protocol, with any compiler.
#include <ctime>

#include "corpus.hpp"
#include "protocol_checks.hpp"

using namespace curb;

TEST_CASE("Every text of the corpus, whole or cut off, passes the checks of socket input") {
    const auto files = fuzz::corpus({CURB_CORPUS "/protocol"});
    fuzz::check_all(files, 40, fuzz::broken);
    fuzz::check_all_cut_off(files, 1'200, fuzz::broken);
}

TEST_CASE("Lines come out whole, however they came in, and no longer than they may be") {
    control::Lines lines(6);
    for (const char *part : {"ab", "c\n\nlong\nf", "ive5"}) lines.take(part);
    for (const char *line : {"abc", "", "long"}) CHECK(lines.next() == line);
    CHECK(!lines.next());
    CHECK_FALSE(lines.too_long());  // there is room for the newline
    lines.take("\nmore12\n");
    CHECK(lines.next() == "five5");
    CHECK(!lines.next());
    CHECK(lines.too_long());
    lines.take("short\n");
    CHECK(!lines.next());
    CHECK(lines.too_long());
    control::Lines unended(6);
    unended.take("sixsix");
    CHECK(unended.too_long());
    CHECK(!unended.next());
}

TEST_CASE("The longest line is read in seconds, or refused, whatever is in it") {
    const auto filled = [](const std::string &head, auto one, const std::string &tail, std::size_t size) {
        std::string out = head;
        for (unsigned i = 0; out.size() < size - 64 - tail.size(); ++i) out += one(i) + ",";
        out.back() = ' ';
        return out + tail;
    };
    const auto member = [](unsigned i) { return "\"" + std::to_string(i) + "\":1"; };
    constexpr std::size_t kLong = control::kLongestReply / 8;  // for answers that are read to their end
    const auto gpu = [](unsigned /*i*/) { return std::string("{}"); };
    const std::clock_t begin = std::clock();  // CPU time of this process
    const auto members = control::parse_reply(filled(R"({"curb":1,"status":{)", member, "}}", control::kLongestReply));
    REQUIRE(!members);
    CHECK_THAT(members.error(), contains("an object in it has more than 256 members"));
    CHECK(!control::parse_reply(filled(R"({"curb":1,"cap":{"gpus":[)", gpu, "]}}", kLong)));
    CHECK(!control::parse_reply(
        filled(R"({"curb":1,"cap":{"gpus":[)", [&](unsigned i) { return "{" + member(i) + "}"; }, "]}}", kLong)));
    CHECK(!control::parse_request(filled(R"({"curb":1,"ask":"status",)", member, "}", control::kLongestRequest)));
    CHECK((std::clock() - begin) / CLOCKS_PER_SEC < 10);
}

TEST_CASE("The checks find a message that does not come back as it was written") {
    const auto deaf = [](std::string_view /*line*/) -> policy::Result<control::Reply, std::string> {
        return std::string();
    };
    CHECK(fuzz::misread("", deaf, "") == "no word of why");
    bool first = true;
    const auto forgetful = [&](std::string_view line) -> policy::Result<control::Reply, std::string> {
        if (std::exchange(first, false)) return control::parse_reply(line);
        return control::Reply(control::Failure{"another"});
    };
    CHECK_THAT(fuzz::misread(R"({"curb":1,"failure":"one"})", forgetful, ""), contains("it says something else"));
}
