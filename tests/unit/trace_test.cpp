#include "control/trace.hpp"

#include <cstdlib>
#include <new>

#include "catch.hpp"
#include "lines_of.hpp"
#include "spoilt.hpp"

using namespace curb;
using control::trace::Event;
using control::trace::Header;
using control::trace::What;
namespace trace = control::trace;

#ifndef CURB_SANITIZED  // whose runtimes have an operator new of their own

namespace {

// How many allocations there is memory for; negative: for all. (Valgrind has an operator new too.)
thread_local int memory_for = -1;

bool memory_can_lack() {
    memory_for = 0;
    bool lacks = false;
    try {
        ::operator delete(::operator new(1));
    } catch (const std::bad_alloc &) {
        lacks = true;
    }
    memory_for = -1;
    return lacks;
}

}  // namespace

// Not inlined: who replaces the one (Valgrind) replaces the other.
[[gnu::noinline]] void *operator new(std::size_t bytes) {
    if (memory_for == 0) throw std::bad_alloc();
    if (memory_for > 0) --memory_for;
    if (void *block = std::malloc(bytes)) return block;
    throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void *block) noexcept { std::free(block); }
[[gnu::noinline]] void operator delete(void *block, std::size_t) noexcept { std::free(block); }

#endif

namespace {

constexpr auto kMost = std::numeric_limits<std::uint64_t>::max();

std::vector<Event> each_event() {
    Event alloc{1'234'567, What::alloc, policy::Kind::pools};
    alloc.gpu = 1;
    alloc.thread = 42;
    alloc.pointer = 0x7f0123456000;
    alloc.bytes = 1000;
    alloc.charge = 2 << 20;
    alloc.of_kind = 3 << 20;
    alloc.held = std::uint64_t{5} << 40;
    Event freed = alloc;
    freed.what = What::free;
    freed.charge = -freed.charge;
    freed.reused = true;
    Event books{999, What::books, policy::Kind::overhead};
    Event refused{86'400'000'000'123, What::refuse};
    refused.why = policy::Obstacle::keep_free;
    refused.limit = 7;
    Event waits = refused;
    waits.what = What::wait;
    Event granted{5'000, What::granted};
    granted.duration_ns = 1'001;
    Event allowance{0, What::allowance};
    allowance.limit = policy::kUnbounded;
    Event step{10'000, What::step};
    step.step = policy::Step::frameworks;
    step.duration_ns = 9'999;
    step.bytes = -3;
    step.text = "SIGUSR1 \"x\"\n\t\\";
    Event policy{1, What::policy};
    policy.limit = policy.of_kind = policy::kUnbounded;
    policy.text = "job.json, rule 1";
    Event dropped{2, What::dropped};
    dropped.bytes = 17;
    return {alloc, freed, books, refused, waits, granted, allowance, step, policy, dropped};
}

}  // namespace

#ifndef CURB_SANITIZED
TEST_CASE("without memory a line throws, wherever it was") {
    if (!memory_can_lack()) return;
    const policy::ByKind kinds{};
    for (const Event &event : each_event()) {
        const auto needs = [&](int memory) {
            std::string line;
            memory_for = memory;
            try {
                trace::append(line, event, 4711);
                trace::append_counters(line, event.ns, 0, kinds, 4711);
            } catch (const std::bad_alloc &) {
                memory_for = -1;
                return true;
            }
            memory_for = -1;
            return false;
        };
        int memory = 0;
        while (needs(memory)) ++memory;
        CHECK(memory > 2);
    }
}
#endif

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

TEST_CASE("The header of a trace is read as it was written") {
    const Header header{4711, "0.1.0", 1'800'000'000'123'456'789, "python3 \"a b\"\n", {{1, "GPU-1", "H100", kMost}}};
    const std::string text = trace::text(header);
    CHECK(text.starts_with("[\n"));
    CHECK(text.ends_with("},\n"));
    const auto read = trace::parse(std::string_view(text).substr(2));
    REQUIRE(read);
    REQUIRE(read->header);
    CHECK(*read->header == header);
}

TEST_CASE("What viewers alone are for, and what a later version adds, is passed over") {
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

TEST_CASE("Every beginning of a trace's line, and every line with one byte changed, is read or refused") {
    std::string lines = trace::text({1, "v", 2, "c", {{0, "GPU-1", "", 1}}}).substr(2);
    for (const Event &event : each_event()) trace::append(lines, event, 1);
    for (const std::string &line : lines_of(lines)) check_spoilt(line.substr(0, line.rfind(',')), trace::parse);
}

TEST_CASE("A trace of another version is refused, with both versions") {
    std::string text = trace::text({1, "v", 2, "c", {}}).substr(2);
    text.replace(text.find("\"trace\":1"), 9, "\"trace\":2");
    const auto read = trace::parse(text);
    REQUIRE(!read);
    CHECK_THAT(read.error(), contains("version 2") && contains("version 1"));
}
