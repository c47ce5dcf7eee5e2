// What the fuzzer of traces began with and what it found, with any compiler.

#include "corpus.hpp"
#include "trace_read_checks.hpp"

using namespace curb;

TEST_CASE("Every trace of the corpus, whole or cut off, passes the checks of any file") {
    const auto files = fuzz::corpus({CURB_CORPUS "/trace"});
    fuzz::check_all(files, 12, fuzz::broken);
    fuzz::check_all_cut_off(files, 2'500, fuzz::broken);
}

TEST_CASE("The checks find where the two readers of lines differ") {
    using control::trace::Event, control::trace::What;
    // What the fast reader says of an event's line, held against one that is another by one member.
    const auto found = [](What what, auto change) {
        Event event;
        event.what = what;
        std::string line;
        append(line, event, 1);
        line.pop_back();  // its newline
        cli::Moment moment;
        std::string_view text;
        REQUIRE(cli::scan(line, moment, text));
        CHECK(fuzz::lost(event, moment) == "");
        change(event);
        return fuzz::lost(event, moment);
    };
    CHECK(found(What::alloc, [](Event &event) { event.what = What::free; }) == "what");
    CHECK(found(What::alloc, [](Event &event) { ++event.ns; }) == "ns");
    CHECK(found(What::alloc, [](Event &event) { event.kind = policy::Kind::pools; }) == "kind");
    CHECK(found(What::alloc, [](Event &event) { ++event.gpu; }) == "gpu");
    CHECK(found(What::alloc, [](Event &event) { ++event.thread; }) == "thread");
    CHECK(found(What::alloc, [](Event &event) { ++event.bytes; }) == "bytes");
    CHECK(found(What::alloc, [](Event &event) { ++event.of_kind; }) == "of_kind");
    CHECK(found(What::alloc, [](Event &event) { ++event.held; }) == "held");
    CHECK(found(What::alloc, [](Event &event) { ++event.pointer; }) == "pointer");
    CHECK(found(What::alloc, [](Event &event) { ++event.charge; }) == "charge");
    CHECK(found(What::alloc, [](Event &event) { event.reused = true; }) == "reused");
    CHECK(found(What::granted, [](Event &event) { ++event.duration_ns; }) == "duration_ns");
    CHECK(found(What::policy, [](Event &event) { ++event.limit; }) == "limit");
    CHECK(found(What::refuse, [](Event &event) { event.why = policy::Limit::device; }) == "why");
    CHECK(found(What::step, [](Event &event) { event.step = policy::Step::pressure; }) == "step");
}
