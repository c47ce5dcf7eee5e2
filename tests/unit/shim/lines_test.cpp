// The lines of a trace: what they add to their records, and the file that takes them.

#include "trace/lines.hpp"

#include <sys/resource.h>

#include <csignal>
#include <vector>

#include "catch.hpp"
#include "lines_of.hpp"
#include "temp_dir.hpp"
#include "trace/file.hpp"

using namespace curb;
using control::trace::Event;
using control::trace::What;
using policy::Kind;
using shim::trace::File;
using shim::trace::Lines;
using shim::trace::Record;

namespace {

constexpr std::uint64_t kMs = 1'000'000;

Record alloc(std::uint64_t ns, Kind kind, std::uint64_t pointer, std::int64_t bytes, policy::Bytes of_kind = 0) {
    Record record{};
    record.ns = ns;
    record.what = What::alloc;
    record.kind = kind;
    record.pointer = pointer;
    record.bytes = bytes;
    record.of_kind = record.held = of_kind;
    return record;
}

Record pool_free(std::uint64_t ns, std::uint64_t pointer) {
    Record record{};
    record.ns = ns;
    record.mark = Record::Mark::pool_free;
    record.pointer = pointer;
    return record;
}

std::vector<Event> events_of(const Lines &lines) {
    std::vector<Event> out;
    for (const std::string &line : lines_of(lines.text()))
        if (const auto read = control::trace::parse(line); read->event) out.push_back(*read->event);
    return out;
}

std::vector<std::string> counters_of(const Lines &lines) {
    std::vector<std::string> out;
    for (const std::string &line : lines_of(lines.text()))
        if (line.starts_with(R"({"ph":"C")")) out.push_back(line);
    return out;
}

}  // namespace

TEST_CASE("A free of a pool's block has the figures of its allocation, and changes no held bytes") {
    Lines lines(1, 0);
    lines.add(alloc(5, Kind::pools, 0x1000, 77, 32));
    lines.add(pool_free(6, 0x1000));
    lines.add(pool_free(7, 0x1000));  // already freed
    lines.add(pool_free(8, 0x2000));  // never allocated
    const std::vector<Event> events = events_of(lines);
    REQUIRE(events.size() == 2);
    CHECK(events[1].what == What::free);
    CHECK(events[1].kind == Kind::pools);
    CHECK(events[1].bytes == 77);
    CHECK(events[1].charge == 0);
    CHECK(events[1].of_kind == 32);
    CHECK(events[1].held == 32);
}

TEST_CASE("A free that arrives after the next allocation of its address belongs to the older allocation") {
    Lines lines(1, 0);
    lines.add(alloc(5, Kind::pools, 0x1000, 1));
    lines.add(alloc(9, Kind::pools, 0x1000, 2));
    lines.add(pool_free(7, 0x1000));
    lines.add(pool_free(12, 0x1000));
    const std::vector<Event> events = events_of(lines);
    REQUIRE(events.size() == 4);
    CHECK(events[2].bytes == 1);
    CHECK(events[3].bytes == 2);
}

TEST_CASE("Counters show the held bytes by kind, at most once a millisecond, and the last figures too") {
    Lines lines(1, 0);
    for (std::uint64_t i = 0; i < 5000; ++i) lines.add(alloc(kMs + i * 1000, Kind::plain, i, 1, i + 1));
    lines.add_counters();
    lines.add_counters();
    const auto counters = counters_of(lines);
    CHECK(counters.size() == 6);
    CHECK_THAT(counters.back(), contains("\"plain\":5000,"));
    CHECK(lines.said(0)[static_cast<std::size_t>(Kind::plain)] == 5000);
    CHECK(events_of(lines).size() == 5000);
    CHECK(shim::trace::events_in(lines.text()) == 5000);
    Lines dropped(1, 10);  // dropped lines are not an event of the program
    dropped.add_dropped(25, 3);
    REQUIRE(events_of(dropped).size() == 1);
    CHECK(events_of(dropped)[0].bytes == 3);
    CHECK(events_of(dropped)[0].ns == 15);
    CHECK(shim::trace::events_in(dropped.text()) == 0);
}

TEST_CASE("Events before the trace began get its first timestamp") {
    Lines lines(1, 100);
    lines.add(alloc(40, Kind::plain, 1, 1));
    Record step{};  // under way when the trace began
    step.ns = 130;
    step.what = What::step;
    step.duration_ns = 70;
    lines.add(step);
    const std::vector<Event> events = events_of(lines);
    REQUIRE(events.size() == 2);
    CHECK(events[0].ns == 0);
    CHECK(events[1].ns == 30);
    CHECK(events[1].duration_ns == 30);
    CHECK_THAT(lines.text(), contains("\"ts\":0.000,\"dur\":0.030,"));
}

TEST_CASE("A file takes no more lines once another process has changed it") {
    const TempDir dir;
    auto file = File::make(dir / "trace");
    REQUIRE(file);
    CHECK(file.value().append("one\n").error.empty());
    CHECK(file.value().append("two\n").bytes == 4);
    CHECK(dir.read("trace") == "one\ntwo\n");
    std::ofstream(dir / "trace", std::ios::app) << "theirs";
    const auto refused = file.value().append("three\n");
    CHECK(refused.bytes == 0);
    CHECK(refused.ended);
    CHECK(dir.read("trace") == "one\ntwo\ntheirs");
}

TEST_CASE("If there is no room for all lines, the file keeps the whole ones") {
    const TempDir dir;
    rlimit before{};
    REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
    const auto handler = ::signal(SIGXFSZ, SIG_IGN);
    const rlimit narrow{10, before.rlim_max};
    auto file = File::make(dir / "trace");
    REQUIRE(file);
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &narrow) == 0);
    const auto some = file.value().append("one\ntwo\nthree\n");
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
    ::signal(SIGXFSZ, handler);
    CHECK(some.bytes == 8);
    CHECK_FALSE(some.ended);
    CHECK_THAT(some.error, contains("File too large"));
    CHECK(file.value().append("four\n").error.empty());
    CHECK(dir.read("trace") == "one\ntwo\nfour\n");
}
