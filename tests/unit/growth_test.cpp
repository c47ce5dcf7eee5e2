// How the allowance grows and falls back, case by case. growth_property_test.cpp holds it against a whole model.
#include "policy/growth.hpp"

#include <random>

#include "catch.hpp"

using namespace curb::policy;
using namespace std::chrono_literals;

namespace {

constexpr Growth kNone{};
constexpr Growth kByStep{.start = 2 * GiB, .step = 1 * GiB};
constexpr Growth kByFactor{.start = 2 * GiB, .factor = 1.5};
constexpr Growth kByBoth{.start = 2 * GiB, .step = 2 * GiB, .factor = 1.5};
constexpr Growth kNever{.start = 2 * GiB};

}  // namespace

// ---- steps ----

TEST_CASE("The allowance begins at the start; without one there is none below the cap") {
    CHECK(first_allowance(kByStep) == 2 * GiB);
    CHECK(first_allowance({.start = 0, .step = 1}) == 0);
    CHECK(first_allowance(kNone) == kUnbounded);
    CHECK(first_allowance({.step = GiB}) == kUnbounded);
}

TEST_CASE("A step adds to the allowance, a factor multiplies it") {
    CHECK(after_step(kByStep, 2 * GiB) == 3 * GiB);
    CHECK(after_step(kByStep, 0) == 1 * GiB);
    CHECK(after_step(kByFactor, 2 * GiB) == 3 * GiB);
    CHECK(after_step(kByFactor, 3 * GiB) == 4608 * MiB);
}

TEST_CASE("Of a step and a factor the one that grows less is taken") {
    CHECK(after_step(kByBoth, 2 * GiB) == 3 * GiB);  // by half
    CHECK(after_step(kByBoth, 4 * GiB) == 6 * GiB);  // either
    CHECK(after_step(kByBoth, 8 * GiB) == 10 * GiB);
}

TEST_CASE("A factor grows by whole megabytes, and by one at the least") {
    CHECK(after_step({.start = 1, .factor = 1.5}, 3 * MiB) == 4 * MiB);
    CHECK(after_step({.start = 1, .factor = 1.5}, 101 * MiB) == 151 * MiB);
    CHECK(after_step({.start = 1, .factor = 1.01}, 2 * MiB) == 3 * MiB);
    CHECK(after_step({.start = 1, .factor = 1.01}, 1) == MiB + 1);
    CHECK(after_step({.start = 0, .factor = 100}, 0) == MiB);
    CHECK(after_step({.start = 1, .step = 1, .factor = 1.01}, 2 * MiB) == 2 * MiB + 1);
}

TEST_CASE("Without a start there is nothing to grow, without step and factor nothing grows") {
    CHECK(after_step(kNone, 5 * GiB) == kUnbounded);
    CHECK(after_step({.step = GiB}, 5 * GiB) == kUnbounded);
    CHECK(after_step(kNever, 2 * GiB) == 2 * GiB);
    CHECK(after_step({.start = 2 * GiB, .factor = 1}, 2 * GiB) == 2 * GiB);
    CHECK(after_step({.start = 2 * GiB, .factor = 0.5}, 2 * GiB) == 2 * GiB);
}

TEST_CASE("An allowance that would be larger than any number is none") {
    CHECK(after_step(kByStep, kUnbounded - GiB) == kUnbounded);
    CHECK(after_step(kByStep, kUnbounded - GiB - 1) == kUnbounded - 1);
    CHECK(after_step(kByStep, kUnbounded - 1) == kUnbounded);
    CHECK(after_step({.start = 1, .step = kUnbounded}, 1) == kUnbounded);
    CHECK(after_step({.start = 1, .factor = 2}, Bytes{1} << 62) == kUnbounded);
    CHECK(after_step({.start = 1, .factor = 2}, (Bytes{1} << 62) - MiB) == (Bytes{1} << 63) - 2 * MiB);
    CHECK(after_step({.start = 1, .factor = 1e300}, GiB) == kUnbounded);
    CHECK(after_step({.start = 1, .factor = 1.5}, kUnbounded - 1) == kUnbounded);
    for (const Growth &growth : {kByStep, kByFactor, kByBoth, kNever})
        CHECK(after_step(growth, kUnbounded) == kUnbounded);
}

TEST_CASE("Every step makes the allowance larger, until there is no larger one") {
    for (const Growth &growth : {kByStep, kByFactor, kByBoth, Growth{.start = 1, .factor = 1.01}}) {
        Bytes allowance = *growth.start;
        int steps = 0;
        for (; allowance < 100 * GiB && steps < 10'000; ++steps) {
            const Bytes next = after_step(growth, allowance);
            REQUIRE(next > allowance);
            allowance = next;
        }
        CHECK(allowance >= 100 * GiB);
    }
}

// ---- falling back ----

TEST_CASE("After a release the allowance is what is held, rounded up to a step from the start") {
    CHECK(fallen_back(kByStep, 10 * GiB, 2 * GiB + 1) == 3 * GiB);
    CHECK(fallen_back(kByStep, 10 * GiB, 3 * GiB) == 3 * GiB);
    CHECK(fallen_back(kByStep, 10 * GiB, 3 * GiB + 1) == 4 * GiB);
    CHECK(fallen_back({.start = 1536 * MiB, .step = GiB}, 10 * GiB, 2 * GiB) == 2560 * MiB);
    CHECK(fallen_back(kByFactor, 10 * GiB, 2 * GiB + 1) == 3 * GiB);
    CHECK(fallen_back(kByFactor, 10 * GiB, 3 * GiB) == 3 * GiB);
    CHECK(fallen_back(kByFactor, 10 * GiB, 3 * GiB + 1) == 4608 * MiB);
}

TEST_CASE("However little is held the allowance does not fall below the start") {
    for (const Growth &growth : {kByStep, kByFactor, kByBoth, kNever}) {
        CHECK(fallen_back(growth, 10 * GiB, 0) == 2 * GiB);
        CHECK(fallen_back(growth, 10 * GiB, 2 * GiB) == 2 * GiB);
    }
    CHECK(fallen_back({.start = 0, .step = GiB}, 10 * GiB, 0) == 0);
}

TEST_CASE("However much is held the allowance does not rise by a release") {
    for (const Growth &growth : {kByStep, kByFactor, kByBoth, kNever})
        for (const Bytes held : {4 * GiB, 20 * GiB, kUnbounded}) CHECK(fallen_back(growth, 3 * GiB, held) <= 3 * GiB);
}

TEST_CASE("Without a start there is nothing to fall back to; without a step nothing to round up to") {
    CHECK(fallen_back(kNone, kUnbounded, 3 * GiB) == kUnbounded);
    CHECK(fallen_back(kNone, 5 * GiB, 3 * GiB) == kUnbounded);
    CHECK(fallen_back(kNever, 8 * GiB, 5 * GiB + 1) == 5 * GiB + 1);
}

TEST_CASE("Falling back does not overflow") {
    CHECK(fallen_back(kByStep, kUnbounded, kUnbounded) == kUnbounded);
    CHECK(fallen_back(kByStep, kUnbounded, kUnbounded - 1) == kUnbounded);
    CHECK(fallen_back({.start = 0, .step = 1}, kUnbounded, kUnbounded - 1) == kUnbounded - 1);
    CHECK(fallen_back({.start = 1, .step = kUnbounded}, kUnbounded, 2) == kUnbounded);
    CHECK(fallen_back({.start = kUnbounded, .step = 1}, kUnbounded, kUnbounded) == kUnbounded);
    CHECK(fallen_back({.start = 1, .factor = 1.01}, kUnbounded, kUnbounded) == kUnbounded);
    CHECK(fallen_back({.start = 1, .factor = 1.01}, 5 * GiB, kUnbounded - 1) == 5 * GiB);
}

TEST_CASE("What is fallen back to covers what is held by the fewest steps from the start") {
    std::mt19937_64 random(1);
    for (int round = 0; round < 20'000; ++round) {
        Growth growth{.start = random() % 1000 * MiB};
        if (random() % 2 == 0)
            growth.step = 1 + random() % (100 * MiB);
        else
            growth.factor = 1.01 + static_cast<double>(random() % 100) / 100;
        const Bytes held = random() % (4 * GiB);
        Bytes expected = *growth.start;
        while (expected < held) expected = after_step(growth, expected);
        if (fallen_back(growth, kUnbounded, held) == expected && fallen_back(growth, expected + 1, held) == expected)
            continue;  // Catch2's assertions are slow
        FAIL("start " << *growth.start << ", step " << growth.step << ", factor " << growth.factor << ", held "
                      << held);
    }
}

// ---- edits ----

TEST_CASE("An edit leaves the allowance, and raises it to a start that is higher") {
    CHECK(after_edit(kByStep, 5 * GiB, 4 * GiB) == 5 * GiB);
    CHECK(after_edit(kByStep, 1 * GiB, 0) == 2 * GiB);
    CHECK(after_edit(kByFactor, 2 * GiB, 0) == 2 * GiB);
    CHECK(after_edit(kByStep, 3 * GiB, 4 * GiB) == 3 * GiB);  // what the driver took beyond it gives no leave for more
}

TEST_CASE("An edit that brings growth allows what is held, as after a release") {
    CHECK(after_edit(kByStep, kUnbounded, 0) == 2 * GiB);
    CHECK(after_edit(kByStep, kUnbounded, 5 * GiB - 1) == 5 * GiB);
    CHECK(after_edit(kByFactor, kUnbounded, 3 * GiB + 1) == 4608 * MiB);
}

TEST_CASE("An edit that takes growth away lifts the allowance") {
    CHECK(after_edit(kNone, 2 * GiB, GiB) == kUnbounded);
    CHECK(after_edit(kNone, kUnbounded, GiB) == kUnbounded);
}

// ---- when, and beside whom ----

TEST_CASE("A step is due when `every` has passed since the last, to the millisecond") {
    const Growth growth{.start = GiB, .step = GiB, .every = 10s};
    CHECK(until_step(growth, 5'000, 5'000) == 10'000);
    CHECK(until_step(growth, 14'999, 5'000) == 1);
    CHECK(until_step(growth, 15'000, 5'000) == 0);
    CHECK(until_step(growth, 100'000, 5'000) == 0);
    CHECK(until_step(kByStep, 5'000, 5'000) == 0);
}

TEST_CASE("A last step that another thread took a moment later counts as just taken") {
    const Growth growth{.start = GiB, .step = GiB, .every = 10s};
    CHECK(until_step(growth, 5'000, 5'001) == 10'000);
    CHECK(until_step(growth, 0, ~std::uint64_t{0}) == 10'000);
    CHECK(until_step(growth, ~std::uint64_t{0}, 0) == 0);
}

TEST_CASE("Beside others there may be held what is held and what is free beyond that to be kept") {
    CHECK(held_beside(4 * GiB, added(10 * GiB, 20 * GiB)) == 26 * GiB);
    CHECK(held_beside(4 * GiB, added(10 * GiB, 4 * GiB)) == 10 * GiB);
    CHECK(held_beside(0, added(10 * GiB, 20 * GiB)) == 30 * GiB);
}

TEST_CASE("Where others left less free than is to be kept, less may be held than is") {
    CHECK(held_beside(4 * GiB, added(10 * GiB, 3 * GiB)) == 9 * GiB);
    CHECK(held_beside(4 * GiB, added(10 * GiB, 0)) == 6 * GiB);
    CHECK(held_beside(20 * GiB, added(10 * GiB, 0)) == 0);
    CHECK(held_beside(kUnbounded, added(10 * GiB, 20 * GiB)) == 0);
}

TEST_CASE("Sums beyond the largest number are it") {
    CHECK(added(1, 2) == 3);
    CHECK(added(kUnbounded, 0) == kUnbounded);
    CHECK(added(kUnbounded, 1) == kUnbounded);
    CHECK(added(kUnbounded - 1, 1) == kUnbounded);
    CHECK(added(1, kUnbounded - 2) == kUnbounded - 1);
    CHECK(held_beside(0, added(kUnbounded, 1)) == kUnbounded);
}
