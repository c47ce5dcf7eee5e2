#include "policy/decisions/turns.hpp"

#include <string>
#include <vector>

#include "catch.hpp"

using namespace curb::policy;
using namespace curb::policy::turns;
using namespace std::chrono_literals;

TEST_CASE("a turn lasts as long as the policy says, but ten times its moves at least; an answer a tenth of that") {
    CHECK(turns::length(30s, 2s, false) == 30s);
    CHECK(turns::length(5s, 2s, false) == 20s);
    CHECK(turns::length(30s, 2s, true) == 3s);
    CHECK(turns::length(5s, 2s, true) == 2s);
    CHECK(turns::length(30s, 0s, true) == 3s);
}

TEST_CASE("a turn in which the program waits for room itself ends after a second of that") {
    CHECK(turns::end(1'000'000, 30s, 0) == 1'030'000);
    CHECK(turns::end(1'000'000, 30s, 1'005'000) == 1'006'000);
    CHECK(turns::end(1'000'000, 30s, 1'029'500) == 1'030'000);
}

TEST_CASE("a program is seldom busy if it was idle in more than half of the last sixty seconds") {
    Seconds seconds = kAllBusy;
    CHECK_FALSE(is_seldom_busy(seconds));
    for (int i = 0; i < 30; ++i) seconds = after_second(seconds, false);
    CHECK_FALSE(is_seldom_busy(seconds));
    seconds = after_second(seconds, false);
    CHECK(is_seldom_busy(seconds));
    for (int i = 0; i < 60; ++i) seconds = after_second(seconds, true);
    CHECK(seconds == kAllBusy);
}

TEST_CASE("who leaves, when, and for whom") {
    constexpr std::int64_t kNow = 1'000'000;
    const Runner over{1, kNow - 1, 40 * GiB}, long_over{2, kNow - 100, 40 * GiB}, goes_on{3, kNow + 10'000, 40 * GiB};
    struct Row {
        std::string what;
        Runner self;
        std::vector<Runner> others;
        Next next;
        bool leaves;
    };
    const Row rows[] = {
        {"its turn is over", over, {}, {20 * GiB}, true},
        {"its turn ends now", {1, kNow, 40 * GiB}, {}, {20 * GiB}, true},
        {"its turn is not over", goes_on, {}, {20 * GiB}, false},
        {"what is missing has become free", over, {}, {0}, false},
        {"it has nothing that can leave", {1, kNow - 1, 0}, {}, {20 * GiB}, false},
        {"it alone is too little, and the other's turn is not over", over, {goes_on}, {60 * GiB}, false},
        {"both together are enough", over, {long_over}, {60 * GiB}, true},
        {"the other one, whose turn ended before, is enough", over, {long_over}, {20 * GiB}, false},
        {"the turn of the other one ended later", long_over, {over}, {20 * GiB}, true},
        {"turns that ended together: the lower process first", {1, kNow, 1}, {{2, kNow, 1}}, {1}, true},
        {"and the other one stays", {2, kNow, 1}, {{1, kNow, 1}}, {1}, false},
        {"what others have is not theirs to leave", over, {{4, kNow - 200, 0}}, {40 * GiB}, true},
        {"all together are too little", over, {long_over}, {90 * GiB}, false},
        {"one that is seldom busy has waited for 3 s", goes_on, {}, {20 * GiB, true, 3s}, true},
        {"it has waited for less", goes_on, {}, {20 * GiB, true, 2999ms}, false},
        {"one that is often busy waits", goes_on, {}, {20 * GiB, false, 1h}, false},
        {"for one that is seldom busy the turn that is over is enough", goes_on, {over}, {20 * GiB, true, 1h}, false},
    };
    for (const Row &row : rows) {
        CAPTURE(row.what);
        CHECK(turns::leaves(row.self, row.others, row.next, kNow) == row.leaves);
    }
}

TEST_CASE("the time on the GPU counts half after five minutes") {
    Duration time{};
    for (int i = 0; i < 300; ++i) time = lately(time, 1s, true);
    CHECK(time > 230s);
    CHECK(time < 245s);
    const Duration before = time;
    for (int i = 0; i < 300; ++i) time = lately(time, 1s, false);
    CHECK(time * 10 > before * 5);
    CHECK(time * 10 < before * 7);
    CHECK(lately(10s, 24h, false) == 5s);  // in one step
}
