// The lines of a trace, as text.
#include "control/trace.hpp"

#include <limits>

#include "catch.hpp"
#include "each_event.hpp"
#include "lines_of.hpp"
#include "spoilt.hpp"

using namespace curb;
using control::trace::Event;
using control::trace::Header;
namespace trace = control::trace;

namespace {

constexpr auto kMost = std::numeric_limits<std::uint64_t>::max();

}  // namespace

TEST_CASE("Every event is read as it was written, on one line") {
    for (const Event &event : each_event()) {
        std::string line;
        trace::append(line, event, 4711);
        CAPTURE(line);
        CHECK(line.find('\n') == line.size() - 1);
        const auto read = trace::parse(line);
        REQUIRE(read);
        REQUIRE(read->event);
        CHECK(*read->event == event);
        CHECK(!read->header);
    }
}

TEST_CASE("The header of a trace is read as it was written, unless it is of another version") {
    const Header header{4711,   "0.1.0", 1'800'000'000'123'456'789, "python3 \"a b\"\n", {{1, "GPU-1", "H100", kMost}},
                        "node7"};
    const std::string text = trace::text(header);
    CHECK(text.starts_with("[\n"));
    CHECK(text.ends_with("},\n"));
    const auto read = trace::parse(std::string_view(text).substr(2));
    REQUIRE(read);
    REQUIRE(read->header);
    CHECK(*read->header == header);
    std::string later = text.substr(2);
    later.replace(later.find("\"trace\":1"), 9, "\"trace\":2");
    CHECK_THAT(error_of(trace::parse(later)), contains("version 2") && contains("version 1"));
}

TEST_CASE("Lines for viewers, and lines of later versions, are ignored") {
    std::string counters;
    trace::append_counters(counters, 5, 0, {}, 1);
    for (const std::string &line :
         {counters, std::string("[\n"), std::string("]"), std::string(), std::string(R"({"name":"later","ph":"i"})")}) {
        CAPTURE(line);
        const auto read = trace::parse(line);
        REQUIRE(read);
        CHECK(!read->event);
        CHECK(!read->header);
    }
}

TEST_CASE("A member that a later version adds to an event is ignored") {
    for (const Event &event : each_event()) {
        std::string line;
        trace::append(line, event, 4711);
        for (const char *member : {"\"later\":5,", "\"later\":\"a, \\\"b}\",", "\"later\":null,"}) {
            std::string changed = line;
            changed.insert(changed.find("\"args\":{") + 8, member);
            const auto read = trace::parse(changed);
            REQUIRE(read);
            CHECK(read->event == event);
        }
    }
}

TEST_CASE("A line of a trace that is cut off or has one byte changed is read or refused") {
    std::string lines = trace::text({1, "v", 2, "c", {{0, "GPU-1", "", 1}}}).substr(2);
    for (const Event &event : each_event()) trace::append(lines, event, 1);
    for (const std::string &line : lines_of(lines)) check_spoilt(line.substr(0, line.rfind(',')), trace::parse);
}
