// Whether a request is granted, as a pure function of the terms, what is held and what is asked.

#include "policy/decide.hpp"

#include "catch.hpp"

using namespace curb::policy;

namespace {

constexpr Bytes kKept = 32 * MiB;

Terms capped(Bytes cap) { return {.cap = cap, .kept_for_driver = kKept}; }
Terms released(Bytes cap) { return {.cap = cap, .kept_for_driver = kKept, .released = true}; }
Terms unusable(std::optional<Bytes> cap) { return {.cap = cap, .refuse_everything = true}; }

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

TEST_CASE("the room is what the cap leaves beside what is held and what is kept") {
    CHECK(room(4 * GiB, kKept, 3 * GiB) == 992 * MiB);
    CHECK(room(4 * GiB, kKept, 4 * GiB - 1) == 0);
    CHECK(room(4 * GiB, kKept, 5 * GiB) == 0);
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
    CHECK_FALSE(measure_again(10 * GiB, 50, false));
    CHECK(measure_again(10 * GiB, 100, false));
    CHECK_FALSE(measure_again(300 * MiB, 1, false));
    CHECK(measure_again(300 * MiB, 2, false));
    CHECK(measure_again(10 * MiB, 0, false));
    CHECK(measure_again(0, 0, false));
}

TEST_CASE("near the cap the device is asked as soon as the driver may have taken something") {
    CHECK(measure_again(300 * MiB, 0, true));
    CHECK_FALSE(measure_again(10 * GiB, 50, true));
    CHECK(measure_again(10 * GiB, 100, true));
}
