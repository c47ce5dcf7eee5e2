// decide() says whether a request is granted: a pure function of the terms, the held bytes and the wanted bytes.

#include "policy/decisions/decide.hpp"
#include "policy/decisions/limit.hpp"

#include "catch.hpp"

using namespace curb::policy;

namespace {

constexpr Bytes kKept = 32 * MiB;

// A cap, and an allowance whose next step is due.
Terms growing(std::optional<Bytes> cap, Bytes allowance) {
    return {.cap = cap, .allowance = allowance, .kept_for_driver = kKept, .step_due = true};
}

}  // namespace

// growth_property_test checks every verdict, to the byte, against a model of its own. Here are the cases that its model
// leaves out, and one example of all verdicts.

TEST_CASE("beyond the allowance curb releases, then takes the step that is due, then waits, then refuses") {
    Terms terms = growing(8 * GiB, 2 * GiB);
    terms.may_wait = true;
    CHECK(decide(terms, GiB, GiB - kKept) == Verdict::grant);
    CHECK(decide(terms, GiB, GiB - kKept + 1) == Verdict::release_first);
    terms.released = true;
    CHECK(decide(terms, GiB, 2 * GiB) == Verdict::grow);
    terms.step_due = false;
    CHECK(decide(terms, GiB, 2 * GiB) == Verdict::wait);
    terms.may_wait = false;
    CHECK(decide(terms, GiB, 2 * GiB) == Verdict::refuse);
}

TEST_CASE("figures near the largest number do not overflow") {
    CHECK(decide({}, ~Bytes{0}, ~Bytes{0}) == Verdict::grant);
    CHECK(decide({.limit_beside_others = 3 * GiB, .may_wait = true, .released = true}, GiB, ~Bytes{0}) ==
          Verdict::wait);
}

TEST_CASE("an invalid policy refuses every request, also one of no bytes") {
    Terms terms = growing(4 * GiB, 2 * GiB);
    terms.refuse_everything = terms.may_wait = true;
    for (const Bytes held : {Bytes{0}, 3 * GiB})
        for (const Bytes bytes : {Bytes{0}, Bytes{1}, GiB}) CHECK(decide(terms, held, bytes) == Verdict::refuse);
}

TEST_CASE("a request for more than the device could ever leave is refused at once, even if it may wait") {
    const Terms waiting{.limit_beside_others = 10 * GiB, .ever = 76 * GiB, .may_wait = true, .released = true};
    CHECK(decide(waiting, 8 * GiB, 76 * GiB) == Verdict::wait);
    CHECK(decide(waiting, 8 * GiB, 76 * GiB + 1) == Verdict::refuse);
    // If it fits the limits it is granted: the driver itself refuses more than the device has.
    CHECK(decide({.ever = 76 * GiB}, 0, 80 * GiB) == Verdict::grant);
}

TEST_CASE("the limit is the lower of cap and allowance; the room is the limit less the held and the kept bytes") {
    CHECK(limit({}) == kUnbounded);
    CHECK(limit({.cap = GiB}) == GiB);
    CHECK(limit({.cap = 2 * GiB, .allowance = GiB}) == GiB);
    CHECK(limit({.cap = GiB, .allowance = 2 * GiB}) == GiB);
    CHECK(room(4 * GiB, kKept, 3 * GiB) == 992 * MiB);
    CHECK(room(4 * GiB, kKept, 4 * GiB - 1) == 0);
    CHECK(room(4 * GiB, kKept, 5 * GiB) == 0);
}

TEST_CASE("a reserve is kept for the driver: for its first kernels, then for later ones, and for the program's heap") {
    struct Row {
        Bytes limit, taken, heap, reserve;
    };
    for (const auto &[limit, taken, heap, reserve] : {
             // For the first kernels an eighth of the cap, at most 160 MiB, until the driver has taken it.
             Row{80 * GiB, 0, 0, 160 * MiB},
             Row{GiB, 0, 0, 128 * MiB},
             Row{~Bytes{0}, 0, 0, 160 * MiB},
             Row{80 * GiB, 100 * MiB, 0, 60 * MiB},
             // After that a 64th of the cap, at most 32 MiB.
             Row{80 * GiB, 140 * MiB, 0, 32 * MiB},
             Row{80 * GiB, 10 * GiB, 0, 32 * MiB},
             Row{GiB, GiB, 0, 16 * MiB},
             Row{0, 0, 0, 0},
             // For the program's heap until it is taken; never more than the cap.
             Row{80 * GiB, 0, GiB, GiB + 160 * MiB},
             Row{80 * GiB, GiB + 100 * MiB, GiB, 60 * MiB},
             Row{GiB, 0, 2 * GiB, GiB},
             Row{GiB, 0, ~Bytes{0}, GiB},
             Row{80 * GiB, 0, ~Bytes{0} - 100 * MiB, 80 * GiB},
         }) {
        CAPTURE(limit, taken, heap);
        CHECK(driver_reserve(limit, taken, heap) == reserve);
    }
}

TEST_CASE(
    "the nearer the cap, the more often the device is measured; at once if the driver may have taken memory there") {
    CHECK(measure_again(10 * GiB, 50, false) == Measure::not_yet);
    CHECK(measure_again(10 * GiB, 100, false) == Measure::soon);
    CHECK(measure_again(10 * GiB, 1000, false) == Measure::now);
    CHECK(measure_again(300 * MiB, 1, false) == Measure::not_yet);
    CHECK(measure_again(300 * MiB, 2, false) == Measure::now);
    CHECK(measure_again(10 * MiB, 0, false) == Measure::now);
    CHECK(measure_again(0, 0, false) == Measure::now);
    CHECK(measure_again(300 * MiB, 0, true) == Measure::now);
    CHECK(measure_again(10 * GiB, 50, true) == Measure::not_yet);
    CHECK(measure_again(10 * GiB, 100, true) == Measure::soon);
}

TEST_CASE("the free memory is measured again for large requests, if little is left, and every 2 ms") {
    CHECK_FALSE(measure_reach_again(10 * GiB, 2 * MiB, 1));
    CHECK(measure_reach_again(10 * GiB, 2 * MiB, 2));
    CHECK(measure_reach_again(10 * GiB, 64 * MiB, 0));
    CHECK_FALSE(measure_reach_again(64 * MiB, 64 * MiB - 1, 0));
    CHECK(measure_reach_again(64 * MiB - 1, 1, 0));
}

TEST_CASE("Under a job's cap a request gets what the other processes leave, and waits if they could free enough") {
    Terms terms{.may_wait = true, .released = true};
    lay_job_over(terms, 10 * GiB, 4 * GiB);
    CHECK(decide(terms, 2 * GiB, 4 * GiB) == Verdict::grant);
    CHECK(decide(terms, 2 * GiB, 5 * GiB) == Verdict::wait);
    CHECK(limit_hit(terms, 2 * GiB, 5 * GiB) == Limit::job);
    CHECK(decide(terms, 0, 11 * GiB) == Verdict::refuse);  // not even if the others held nothing
    lay_job_over(terms, 10 * GiB, 12 * GiB);
    CHECK(decide(terms, 0, 1) == Verdict::wait);
    lay_job_over(terms, 10 * GiB, 0);
    CHECK(decide(terms, 0, 10 * GiB) == Verdict::grant);

    Terms own{.cap = 2 * GiB};
    lay_job_over(own, 10 * GiB, 4 * GiB);
    CHECK(limit_hit(own, 2 * GiB, 1) == Limit::cap);
    lay_job_over(own, 10 * GiB, 9 * GiB);
    CHECK(limit_hit(own, 2 * GiB, 1) == Limit::job);

    Terms unusable;  // the ledger of the job cannot be used
    lay_job_over(unusable, 0, 0);
    CHECK(decide(unusable, 0, 2 * MiB) == Verdict::refuse);
    CHECK(limit_hit(unusable, 0, 2 * MiB) == Limit::job);
}
