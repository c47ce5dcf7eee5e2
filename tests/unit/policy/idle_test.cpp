#include "policy/decisions/idle.hpp"

#include "catch.hpp"

using namespace curb::policy;
using namespace std::chrono_literals;

TEST_CASE("A release is due once in each period without use, counted from the latest use") {
    IdlePeriod period(1000);
    CHECK_FALSE(period.due(400, 1ms));  // the time is before the last use
    CHECK_FALSE(period.due(1999, 1s));
    CHECK(period.due(2000, 1s));
    period.served();
    CHECK_FALSE(period.due(1'000'000, 1s));
    period.used(5000);
    period.used(3000);  // reported late
    CHECK_FALSE(period.due(5999, 1s));
    CHECK(period.due(6000, 1s));
}

TEST_CASE("The poll interval is short enough to see a period end in time, and no shorter") {
    CHECK(IdlePeriod::poll_interval_ms(1ms) == 10);
    CHECK(IdlePeriod::poll_interval_ms(800ms) == 100);
    CHECK(IdlePeriod::poll_interval_ms(10min) == 5000);
    CHECK(IdlePeriod::poll_interval_ms(Duration::max()) == 5000);
}
