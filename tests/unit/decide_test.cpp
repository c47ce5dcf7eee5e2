// Whether a request is granted, as a pure function of the terms, what is held and what is asked.

#include "policy/decide.hpp"

#include "catch.hpp"

using namespace curb::policy;

namespace {

Terms capped(Bytes cap) { return {.cap = cap, .refuse_everything = false, .released = false}; }
Terms released(Bytes cap) { return {.cap = cap, .refuse_everything = false, .released = true}; }
Terms unusable(std::optional<Bytes> cap) { return {.cap = cap, .refuse_everything = true, .released = false}; }

}  // namespace

TEST_CASE("without a cap everything is granted") {
    CHECK(decide({}, 100 * GiB, 100 * GiB) == Verdict::grant);
    CHECK(decide({}, ~Bytes{0}, ~Bytes{0}) == Verdict::grant);
}

TEST_CASE("a part of the cap is kept for what the driver takes by itself: a 64th, and never more than 32 MiB") {
    CHECK(driver_reserve(1 * GiB) == 16 * MiB);
    CHECK(driver_reserve(2 * GiB) == 32 * MiB);
    CHECK(driver_reserve(80 * GiB) == 32 * MiB);
    CHECK(driver_reserve(0) == 0);
    CHECK(room(4 * GiB, 3 * GiB) == 992 * MiB);
    CHECK(room(4 * GiB, 4 * GiB - 1) == 0);
    CHECK(room(4 * GiB, 5 * GiB) == 0);
}

TEST_CASE("a request that fits into the room to the last byte is granted") {
    CHECK(decide(capped(4 * GiB), 3 * GiB, 992 * MiB) == Verdict::grant);
    CHECK(decide(capped(4 * GiB), 4 * GiB, 0) == Verdict::grant);
}

TEST_CASE("a request beyond the cap asks for a release first and is refused after it") {
    CHECK(decide(capped(4 * GiB), 3 * GiB, 992 * MiB + 1) == Verdict::release_first);
    CHECK(decide(released(4 * GiB), 3 * GiB, 992 * MiB + 1) == Verdict::refuse);
}

TEST_CASE("a request larger than the cap is refused at once: no release could serve it") {
    CHECK(decide(capped(4 * GiB), 0, 4 * GiB - 32 * MiB + 1) == Verdict::refuse);
    CHECK(decide(capped(4 * GiB), 3 * GiB, ~Bytes{0}) == Verdict::refuse);
}

TEST_CASE("more held than the cap, as after a lowered cap, refuses even the smallest request") {
    CHECK(decide(capped(4 * GiB), 5 * GiB, 1) == Verdict::release_first);
    CHECK(decide(released(4 * GiB), 5 * GiB, 1) == Verdict::refuse);
}

TEST_CASE("a policy that cannot be used refuses everything") {
    CHECK(decide(unusable(std::nullopt), 0, 1) == Verdict::refuse);
    CHECK(decide(unusable(4 * GiB), 0, 1) == Verdict::refuse);
}

TEST_CASE("the device is asked the more often the nearer the cap is") {
    CHECK_FALSE(measure_again(10 * GiB, 50));
    CHECK(measure_again(10 * GiB, 100));
    CHECK_FALSE(measure_again(300 * MiB, 1));
    CHECK(measure_again(300 * MiB, 2));
    CHECK(measure_again(10 * MiB, 0));
    CHECK(measure_again(0, 0));
}
