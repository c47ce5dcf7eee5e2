// Whether a request is granted, as a pure function of the terms, what is held and what is asked.

#include "policy/decide.hpp"

#include <random>

#include "catch.hpp"

using namespace curb::policy;

namespace {

constexpr Bytes kKept = 32 * MiB;

Terms capped(Bytes cap) { return {.cap = cap, .kept_for_driver = kKept}; }
// Under a cap and an allowance of which a step is due.
Terms growing(std::optional<Bytes> cap, Bytes allowance) {
    return {.cap = cap, .allowance = allowance, .kept_for_driver = kKept, .step_due = true};
}

}  // namespace

TEST_CASE("without a cap everything is granted") {
    CHECK(decide({}, 100 * GiB, 100 * GiB) == Verdict::grant);
    CHECK(decide({}, ~Bytes{0}, ~Bytes{0}) == Verdict::grant);
}

TEST_CASE("room for the first kernels is kept until the driver has taken it: an eighth of the cap, at most 160 MiB") {
    CHECK(driver_reserve(80 * GiB, 0, 0) == 160 * MiB);
    CHECK(driver_reserve(1 * GiB, 0, 0) == 128 * MiB);
    CHECK(driver_reserve(80 * GiB, 100 * MiB, 0) == 60 * MiB);
}

TEST_CASE("after the first kernels a 64th of the cap is kept, at most 32 MiB") {
    CHECK(driver_reserve(80 * GiB, 140 * MiB, 0) == 32 * MiB);
    CHECK(driver_reserve(80 * GiB, 10 * GiB, 0) == 32 * MiB);
    CHECK(driver_reserve(1 * GiB, 1 * GiB, 0) == 16 * MiB);
    CHECK(driver_reserve(0, 0, 0) == 0);
}

TEST_CASE("room for a heap that the program has asked for is kept until it is taken, and is never more than the cap") {
    CHECK(driver_reserve(80 * GiB, 0, GiB) == GiB + 160 * MiB);
    CHECK(driver_reserve(80 * GiB, GiB + 100 * MiB, GiB) == 60 * MiB);
    CHECK(driver_reserve(GiB, 0, 2 * GiB) == GiB);
}

TEST_CASE("room for a heap of any size is at most the whole cap") {
    CHECK(driver_reserve(GiB, 0, ~Bytes{0}) == GiB);
    CHECK(driver_reserve(80 * GiB, 0, ~Bytes{0} - 100 * MiB) == 80 * GiB);
    CHECK(driver_reserve(~Bytes{0}, 0, 0) == 160 * MiB);
}

TEST_CASE("the room is what the cap leaves beside what is held and what is kept") {
    CHECK(room(4 * GiB, kKept, 3 * GiB) == 992 * MiB);
    CHECK(room(4 * GiB, kKept, 4 * GiB - 1) == 0);
    CHECK(room(4 * GiB, kKept, 5 * GiB) == 0);
}

// ---- growth, others on the device, waiting ----

TEST_CASE("a policy that cannot be used refuses everything, even what a cap would grant, release or wait for") {
    CHECK(decide({.refuse_everything = true}, 0, 1) == Verdict::refuse);
    Terms terms = growing(4 * GiB, 2 * GiB);
    terms.refuse_everything = terms.may_wait = true;
    CHECK(decide(terms, 0, 1) == Verdict::refuse);
    CHECK(decide(terms, 3 * GiB, GiB) == Verdict::refuse);
    CHECK(decide(terms, 0, 0) == Verdict::refuse);
}

TEST_CASE("within the allowance a request is granted to the last byte, kept room left out") {
    const Terms terms = growing(8 * GiB, 2 * GiB);
    CHECK(decide(terms, 1 * GiB, GiB - kKept) == Verdict::grant);
    CHECK(decide(terms, 1 * GiB, GiB - kKept + 1) != Verdict::grant);
}

TEST_CASE("beyond the allowance a release comes first, then the step that is due") {
    Terms terms = growing(8 * GiB, 2 * GiB);
    CHECK(decide(terms, 1 * GiB, 2 * GiB) == Verdict::release_first);
    terms.released = true;
    CHECK(decide(terms, 1 * GiB, 2 * GiB) == Verdict::grow);
    terms.step_due = false;
    CHECK(decide(terms, 1 * GiB, 2 * GiB) == Verdict::refuse);
    terms.may_wait = true;
    CHECK(decide(terms, 1 * GiB, 2 * GiB) == Verdict::wait);
}

TEST_CASE("a policy may take the step before it releases, and releases where no step can serve the request") {
    Terms terms = growing(8 * GiB, 2 * GiB);
    terms.release_before_growth = false;
    CHECK(decide(terms, 1 * GiB, 2 * GiB) == Verdict::grow);
    CHECK(decide(terms, 7 * GiB, 2 * GiB) == Verdict::release_first);  // the cap is in the way, not the allowance
    terms.step_due = false;
    CHECK(decide(terms, 1 * GiB, 2 * GiB) == Verdict::release_first);
    terms.released = true;
    CHECK(decide(terms, 1 * GiB, 2 * GiB) == Verdict::refuse);
}

TEST_CASE("no step is taken for a request that the cap would not hold beside what is held") {
    Terms terms = growing(4 * GiB, 2 * GiB);
    terms.released = terms.may_wait = true;
    CHECK(decide(terms, 2 * GiB, 2 * GiB - kKept) == Verdict::grow);
    CHECK(decide(terms, 2 * GiB, 2 * GiB - kKept + 1) == Verdict::wait);
}

TEST_CASE("an allowance without a cap grows as far as it has to") {
    Terms terms = growing(std::nullopt, 2 * GiB);
    terms.released = true;
    CHECK(decide(terms, 1 * GiB, 100 * GiB) == Verdict::grow);
    terms.allowance = kUnbounded;
    CHECK(decide(terms, 1 * GiB, 100 * GiB) == Verdict::grant);
}

TEST_CASE("a request that no empty device of that cap could hold is neither released, grown nor waited for") {
    Terms terms = growing(4 * GiB, 2 * GiB);
    terms.may_wait = true;
    CHECK(decide(terms, 0, 4 * GiB - kKept) == Verdict::release_first);
    CHECK(decide(terms, 0, 4 * GiB - kKept + 1) == Verdict::refuse);
}

TEST_CASE("a request may leave the device exactly what is to stay free, and not a byte less") {
    Terms terms{.beside_others = 3 * GiB};
    CHECK(decide(terms, 1 * GiB, 2 * GiB) == Verdict::grant);
    CHECK(decide(terms, 1 * GiB, 2 * GiB + 1) == Verdict::release_first);
    terms.released = true;
    CHECK(decide(terms, 1 * GiB, 2 * GiB + 1) == Verdict::refuse);
    terms.may_wait = true;
    CHECK(decide(terms, 1 * GiB, 2 * GiB + 1) == Verdict::wait);
    CHECK(decide(terms, 1 * GiB, ~Bytes{0}) == Verdict::wait);
    CHECK(decide(terms, 4 * GiB, 0) == Verdict::grant);
}

TEST_CASE("a request for more than the device could ever leave is refused at once, however long it might wait") {
    const Terms waiting{.beside_others = 10 * GiB, .ever = 76 * GiB, .may_wait = true, .released = true};
    CHECK(decide(waiting, 8 * GiB, 76 * GiB) == Verdict::wait);
    CHECK(decide(waiting, 8 * GiB, 76 * GiB + 1) == Verdict::refuse);
    // What fits is granted: the driver has its own answer to what is more than it has.
    CHECK(decide({.ever = 76 * GiB}, 0, 80 * GiB) == Verdict::grant);
}

TEST_CASE("no step is taken while others leave the device too little") {
    Terms terms = growing(8 * GiB, 2 * GiB);
    terms.beside_others = 3 * GiB;
    terms.released = true;
    CHECK(decide(terms, 1 * GiB, 2 * GiB) == Verdict::grow);
    CHECK(decide(terms, 1 * GiB, 2 * GiB + 1) == Verdict::refuse);
    terms.may_wait = true;
    CHECK(decide(terms, 1 * GiB, 2 * GiB + 1) == Verdict::wait);
}

TEST_CASE("waiting comes after releasing") {
    Terms terms = capped(4 * GiB);
    terms.may_wait = true;
    CHECK(decide(terms, 4 * GiB, 1) == Verdict::release_first);
    terms.released = true;
    CHECK(decide(terms, 4 * GiB, 1) == Verdict::wait);
}

TEST_CASE("the limit is the lower of cap and allowance") {
    CHECK(limit({}) == kUnbounded);
    CHECK(limit({.cap = GiB}) == GiB);
    CHECK(limit({.allowance = GiB}) == GiB);
    CHECK(limit({.cap = 2 * GiB, .allowance = GiB}) == GiB);
    CHECK(limit({.cap = GiB, .allowance = 2 * GiB}) == GiB);
}

TEST_CASE("where there is no growth, nothing to keep free and no waiting, the verdict is that of the cap alone") {
    std::mt19937_64 random(1);
    for (int round = 0; round < 100'000; ++round) {
        const Bytes cap = random() % 64, kept = random() % 16, held = random() % 80, bytes = random() % 80;
        const bool released = random() % 2 == 0;
        const Bytes usable = cap < kept ? 0 : cap - kept;
        const Verdict expected = bytes == 0 || held + bytes <= usable ? Verdict::grant
                                 : bytes > usable || released         ? Verdict::refuse
                                                                      : Verdict::release_first;
        const Terms terms{.cap = cap,
                          .kept_for_driver = kept,
                          .release_before_growth = random() % 2 == 0,
                          .step_due = random() % 2 == 0,
                          .released = released};
        if (decide(terms, held, bytes) == expected) continue;  // Catch2's assertions are slow
        FAIL("cap " << cap << ", kept " << kept << ", held " << held << ", asked " << bytes);
    }
}

// ---- how often the device is asked ----

TEST_CASE("the device is asked the more often the nearer the cap is") {
    CHECK(measure_again(10 * GiB, 50, false) == Measure::not_yet);
    CHECK(measure_again(10 * GiB, 100, false) == Measure::soon);
    CHECK(measure_again(10 * GiB, 1000, false) == Measure::now);  // nobody else has
    CHECK(measure_again(300 * MiB, 1, false) == Measure::not_yet);
    CHECK(measure_again(300 * MiB, 2, false) == Measure::now);
    CHECK(measure_again(10 * MiB, 0, false) == Measure::now);
    CHECK(measure_again(0, 0, false) == Measure::now);
}

TEST_CASE("near the cap the device is asked as soon as the driver may have taken something") {
    CHECK(measure_again(300 * MiB, 0, true) == Measure::now);
    CHECK(measure_again(10 * GiB, 50, true) == Measure::not_yet);
    CHECK(measure_again(10 * GiB, 100, true) == Measure::soon);
}

TEST_CASE("what others leave free is asked again for large requests, near the end of it, and every other millisecond") {
    CHECK_FALSE(measure_reach_again(10 * GiB, 2 * MiB, 1));
    CHECK(measure_reach_again(10 * GiB, 2 * MiB, 2));
    CHECK(measure_reach_again(10 * GiB, 64 * MiB, 0));
    CHECK_FALSE(measure_reach_again(64 * MiB, 64 * MiB - 1, 0));
    CHECK(measure_reach_again(64 * MiB - 1, 1, 0));
}
