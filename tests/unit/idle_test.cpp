#include "policy/idle.hpp"

#include "catch.hpp"

using namespace curb::policy;
using namespace std::chrono_literals;

TEST_CASE("A release is due once the GPU was not used for as long as the policy says") {
    IdlePeriod period(1000);
    CHECK_FALSE(period.due(1999, 1s));
    CHECK(period.due(2000, 1s));
}

TEST_CASE("Every use begins a new period") {
    IdlePeriod period(0);
    period.used(900);
    CHECK_FALSE(period.due(1800, 1s));
    CHECK(period.due(1900, 1s));
}

TEST_CASE("In one period there is one release, and the next use makes the next one possible") {
    IdlePeriod period(0);
    CHECK(period.due(1000, 1s));
    period.served();
    CHECK_FALSE(period.due(1'000'000, 1s));
    period.used(1'000'000);
    CHECK_FALSE(period.due(1'000'500, 1s));
    CHECK(period.due(1'001'000, 1s));
}

TEST_CASE("A use that becomes known late does not set the period back") {
    IdlePeriod period(0);
    period.used(5000);
    period.used(3000);
    CHECK_FALSE(period.due(5999, 1s));
    CHECK(period.due(6000, 1s));
}

TEST_CASE("A clock that stands before the last use is no idle time") {
    IdlePeriod period(5000);
    CHECK_FALSE(period.due(4000, 1ms));
}

TEST_CASE("Looks are so frequent that a period is seen to end in time, and no more than needed") {
    CHECK(IdlePeriod::poll_interval_ms(1ms) == 10);
    CHECK(IdlePeriod::poll_interval_ms(800ms) == 100);
    CHECK(IdlePeriod::poll_interval_ms(10min) == 5000);
    CHECK(IdlePeriod::poll_interval_ms(Duration::max()) == 5000);
}
