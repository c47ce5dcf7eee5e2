#include "policy/decisions/queue_check.hpp"

#include "catch.hpp"

using curb::policy::QueueCheck;

namespace {

constexpr std::uint64_t kMs = 1'000'000;  // in ns

}  // namespace

TEST_CASE("a slow check is repeated seldom, but soon after this process has freed memory or waited") {
    QueueCheck check;
    CHECK(check.due(0, false));
    check.began(1000);
    check.ended(1010, 10 * kMs);
    CHECK_FALSE(check.due(1059, true));
    CHECK(check.due(1060, true));
    CHECK_FALSE(check.due(1509, false));
    CHECK(check.due(1510, false));
}

TEST_CASE("a fast check is repeated every 20 ms, the slowest one every second") {
    QueueCheck check;
    check.began(1000);
    check.ended(1000, 1000);
    for (const bool changed : {false, true}) {
        CHECK_FALSE(check.due(1019, changed));
        CHECK(check.due(1020, changed));
    }
    check.began(2000);
    check.ended(3000, 1000 * kMs);
    for (const bool changed : {false, true}) {
        CHECK_FALSE(check.due(3999, changed));
        CHECK(check.due(4000, changed));
    }
}

TEST_CASE("while one thread checks, the others do not") {
    QueueCheck check;
    check.began(1000);
    CHECK_FALSE(check.due(1999, true));
    CHECK(check.due(2000, false));  // it has ended by an exception
}
