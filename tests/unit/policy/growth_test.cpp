// How the allowance grows and falls back, case by case. growth_property_test.cpp checks it against a model.
#include "policy/decisions/growth.hpp"

#include <random>

#include "catch.hpp"

using namespace curb::policy;
using namespace std::chrono_literals;

namespace {

constexpr Growth kNone{};
constexpr Growth kByStep{.start = 2 * GiB, .step = 1 * GiB};
constexpr Growth kByFactor{.start = 2 * GiB, .factor = 1.5};
constexpr Growth kByBoth{.start = 2 * GiB, .step = 2 * GiB, .factor = 1.5};
constexpr Growth kNeverGrows{.start = 2 * GiB};

}  // namespace

TEST_CASE("The allowance begins at the start; without a start there is no allowance below the cap") {
    CHECK(first_allowance(kByStep) == 2 * GiB);
    CHECK(first_allowance({.start = 0, .step = 1}) == 0);
    CHECK(first_allowance(kNone) == kUnbounded);
    CHECK(first_allowance({.step = GiB}) == kUnbounded);
}

TEST_CASE("A step adds to the allowance, a factor multiplies it, and of both the smaller result is taken") {
    struct Row {
        Growth growth;
        Bytes before, after;
    };
    constexpr Bytes kHalf = Bytes{1} << 62;
    for (const auto &[growth, before, after] : {
             Row{kByStep, 2 * GiB, 3 * GiB},
             Row{kByStep, 0, GiB},
             Row{kByFactor, 2 * GiB, 3 * GiB},
             Row{kByFactor, 3 * GiB, 4608 * MiB},
             Row{kByBoth, 2 * GiB, 3 * GiB},
             Row{kByBoth, 4 * GiB, 6 * GiB},
             Row{kByBoth, 8 * GiB, 10 * GiB},
             // A factor grows by whole MiB, at least one.
             Row{{.start = 1, .factor = 1.5}, 3 * MiB, 4 * MiB},
             Row{{.start = 1, .factor = 1.5}, 101 * MiB, 151 * MiB},
             Row{{.start = 1, .factor = 1.01}, 2 * MiB, 3 * MiB},
             Row{{.start = 1, .factor = 1.01}, 1, MiB + 1},
             Row{{.start = 0, .factor = 100}, 0, MiB},
             Row{{.start = 1, .step = 1, .factor = 1.01}, 2 * MiB, 2 * MiB + 1},
             // Without a start there is no allowance; without step and factor it stays.
             Row{kNone, 5 * GiB, kUnbounded},
             Row{{.step = GiB}, 5 * GiB, kUnbounded},
             Row{kNeverGrows, 2 * GiB, 2 * GiB},
             Row{{.start = 2 * GiB, .factor = 1}, 2 * GiB, 2 * GiB},
             Row{{.start = 2 * GiB, .factor = 0.5}, 2 * GiB, 2 * GiB},
             // A result beyond the largest number means no allowance.
             Row{kByStep, kUnbounded - GiB, kUnbounded},
             Row{kByStep, kUnbounded - GiB - 1, kUnbounded - 1},
             Row{{.start = 1, .step = kUnbounded}, 1, kUnbounded},
             Row{{.start = 1, .factor = 2}, kHalf, kUnbounded},
             Row{{.start = 1, .factor = 2}, kHalf - MiB, 2 * kHalf - 2 * MiB},
             Row{{.start = 1, .factor = 1e300}, GiB, kUnbounded},
             Row{kNeverGrows, kUnbounded, kUnbounded},
             Row{kByFactor, kUnbounded, kUnbounded},
         }) {
        CAPTURE(growth.step, growth.factor, before);
        CHECK(after_step(growth, before) == after);
    }
}

TEST_CASE("A release sets the allowance to the held bytes, rounded up to a step from the start") {
    struct Row {
        Growth growth;
        Bytes before, held, after;
    };
    for (const auto &[growth, before, held, after] : {
             Row{kByStep, 10 * GiB, 3 * GiB, 3 * GiB},
             Row{kByStep, 10 * GiB, 3 * GiB + 1, 4 * GiB},
             Row{{.start = 1536 * MiB, .step = GiB}, 10 * GiB, 2 * GiB, 2560 * MiB},
             Row{kByFactor, 10 * GiB, 3 * GiB, 3 * GiB},
             Row{kByFactor, 10 * GiB, 3 * GiB + 1, 4608 * MiB},
             Row{kNeverGrows, 8 * GiB, 5 * GiB + 1, 5 * GiB + 1},
             // It neither falls below the start nor rises.
             Row{kByStep, 10 * GiB, 0, 2 * GiB},
             Row{kByBoth, 10 * GiB, 2 * GiB, 2 * GiB},
             Row{kNeverGrows, 10 * GiB, 0, 2 * GiB},
             Row{kByStep, 3 * GiB, 4 * GiB, 3 * GiB},
             Row{kByFactor, 3 * GiB, kUnbounded, 3 * GiB},
             // Without a start there is none.
             Row{kNone, kUnbounded, 3 * GiB, kUnbounded},
             Row{kNone, 5 * GiB, 3 * GiB, kUnbounded},
             // Nothing overflows.
             Row{kByStep, kUnbounded, kUnbounded, kUnbounded},
             Row{kByStep, kUnbounded, kUnbounded - 1, kUnbounded},
             Row{{.start = 0, .step = 1}, kUnbounded, kUnbounded - 1, kUnbounded - 1},
             Row{{.start = 1, .step = kUnbounded}, kUnbounded, 2, kUnbounded},
             Row{{.start = kUnbounded, .step = 1}, kUnbounded, kUnbounded, kUnbounded},
             Row{{.start = 1, .factor = 1.01}, kUnbounded, kUnbounded, kUnbounded},
             Row{{.start = 1, .factor = 1.01}, 5 * GiB, kUnbounded - 1, 5 * GiB},
         }) {
        CAPTURE(growth.step, growth.factor, before, held);
        CHECK(fallen_back(growth, before, held) == after);
    }
}

TEST_CASE("The allowance falls back to the fewest steps from the start that cover the held bytes, and each step adds") {
    std::mt19937_64 random(1);
    for (int round = 0; round < 20'000; ++round) {
        Growth growth{.start = random() % 1000 * MiB};
        if (random() % 2 == 0)
            growth.step = 1 + random() % (100 * MiB);
        else
            growth.factor = 1.01 + static_cast<double>(random() % 100) / 100;
        const Bytes held = random() % (4 * GiB);
        Bytes expected = *growth.start;
        while (expected < held) {
            const Bytes next = after_step(growth, expected);
            if (next <= expected) FAIL("a step from " << expected << " to " << next);
            expected = next;
        }
        if (fallen_back(growth, kUnbounded, held) == expected && fallen_back(growth, expected + 1, held) == expected)
            continue;  // Catch2's assertions are slow
        FAIL("start " << *growth.start << ", step " << growth.step << ", factor " << growth.factor << ", held "
                      << held);
    }
}

TEST_CASE("An edit keeps the allowance, raises it to a higher start, and removes it together with growth") {
    struct Row {
        Growth growth;
        Bytes before, held, after;
    };
    for (const auto &[growth, before, held, after] : {
             Row{kByStep, 5 * GiB, 4 * GiB, 5 * GiB},
             Row{kByStep, GiB, 0, 2 * GiB},
             Row{kByFactor, 2 * GiB, 0, 2 * GiB},
             Row{kByStep, 3 * GiB, 4 * GiB, 3 * GiB},  // overhead beyond it does not raise it
             // An edit that adds growth sets the allowance by what is held, as a release does.
             Row{kByStep, kUnbounded, 0, 2 * GiB},
             Row{kByStep, kUnbounded, 5 * GiB - 1, 5 * GiB},
             Row{kByFactor, kUnbounded, 3 * GiB + 1, 4608 * MiB},
             Row{kNone, 2 * GiB, GiB, kUnbounded},
             Row{kNone, kUnbounded, GiB, kUnbounded},
         }) {
        CAPTURE(growth.step, growth.factor, before, held);
        CHECK(after_edit(growth, before, held) == after);
    }
}

TEST_CASE("A step is due when `every` has passed since the last, to the millisecond") {
    const Growth growth{.start = GiB, .step = GiB, .every = 10s};
    CHECK(until_step(growth, 5'000, 5'000) == 10'000);
    CHECK(until_step(growth, 14'999, 5'000) == 1);
    CHECK(until_step(growth, 15'000, 5'000) == 0);
    CHECK(until_step(growth, ~std::uint64_t{0}, 0) == 0);
    CHECK(until_step(kByStep, 5'000, 5'000) == 0);
    // Another thread may have taken the last step a moment later: it counts as just taken.
    CHECK(until_step(growth, 5'000, 5'001) == 10'000);
    CHECK(until_step(growth, 0, ~std::uint64_t{0}) == 10'000);
}

TEST_CASE("The limit beside others is held plus free bytes, less the bytes to keep free") {
    CHECK(held_beside(4 * GiB, added(10 * GiB, 20 * GiB)) == 26 * GiB);
    CHECK(held_beside(4 * GiB, added(10 * GiB, 3 * GiB)) == 9 * GiB);  // less than is held
    CHECK(held_beside(20 * GiB, added(10 * GiB, 0)) == 0);
    CHECK(held_beside(kUnbounded, added(10 * GiB, 20 * GiB)) == 0);
    CHECK(held_beside(0, added(kUnbounded, 1)) == kUnbounded);
    CHECK(added(kUnbounded - 1, 1) == kUnbounded);
    CHECK(added(1, kUnbounded - 2) == kUnbounded - 1);
}
