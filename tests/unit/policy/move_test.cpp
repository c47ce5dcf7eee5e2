#include "policy/decisions/move.hpp"

#include "catch.hpp"

using namespace curb::policy;

TEST_CASE("a nap takes host memory until a tenth is left, and no more than the policy allows") {
    CHECK(host_budget(100 * GiB, 200 * GiB, 200 * GiB) == 80 * GiB);
    CHECK(host_budget(100 * GiB, 200 * GiB, 30 * GiB) == 30 * GiB);
    CHECK(host_budget(19 * GiB, 200 * GiB, 200 * GiB) == 0);
    CHECK(is_short_of_host(9 * GiB, 200 * GiB));
    CHECK_FALSE(is_short_of_host(10 * GiB, 200 * GiB));
    CHECK_FALSE(is_short_of_host(0, 0));  // nothing is known
}

TEST_CASE("a process keeps the host memory of a nap where the next one may come soon, as long as a tenth is free") {
    using namespace std::chrono_literals;
    CHECK(kept_for(30s) == 90s);
    CHECK(kept_for(5min) == 6min);
    CHECK(kept_for(5min + 1ms) == 0s);
    CHECK(kept_for(Duration::max()) == 0s);
    CHECK(kept_of_host(16 * GiB, 100 * GiB, 200 * GiB, 200 * GiB) == 16 * GiB);
    CHECK(kept_of_host(16 * GiB, 100 * GiB, 200 * GiB, 4 * GiB) == 4 * GiB);
    CHECK(kept_of_host(16 * GiB, 15 * GiB, 200 * GiB, 200 * GiB) == 11 * GiB);
    CHECK(kept_of_host(16 * GiB, 0, 200 * GiB, 200 * GiB) == 0);
}

TEST_CASE("blocks of zeros leave first, then larger ones, and what does not fit into host memory stays") {
    const std::vector<Leaver> blocks{{4 * GiB, 4 * GiB}, {8 * GiB, 8 * GiB}, {2 * GiB, 0}, {4 * GiB, 1 * GiB}};
    CHECK(leaving(blocks, 16 * GiB) == std::vector<std::size_t>{2, 3, 1, 0});
    CHECK(leaving(blocks, 5 * GiB) == std::vector<std::size_t>{2, 3, 0});
    CHECK(leaving(blocks, 0) == std::vector<std::size_t>{2});
    CHECK(leaving({}, GiB).empty());
}

TEST_CASE("the pages of a block are either of zeros or copied") {
    const std::vector<bool> zero{true, true, false, true, false, false};
    const Bytes bytes = 6 * kZeroPage - 4096;
    CHECK(runs(7, bytes, zero, true) == std::vector<Part>{{7, 0, 2 * kZeroPage}, {7, 3 * kZeroPage, kZeroPage}});
    CHECK(runs(7, bytes, zero, false) ==
          std::vector<Part>{{7, 2 * kZeroPage, kZeroPage}, {7, 4 * kZeroPage, 2 * kZeroPage - 4096}});
}

TEST_CASE("chunks are full but for the last one, over the ends of blocks") {
    const auto cut = chunks({{0, 0, kChunk + kZeroPage}, {1, 4 * kZeroPage, kZeroPage}, {2, 0, 2 * kChunk}});
    REQUIRE(cut.size() == 4);
    CHECK(cut[0] == std::vector<Part>{{0, 0, kChunk}});
    CHECK(cut[1] ==
          std::vector<Part>{{0, kChunk, kZeroPage}, {1, 4 * kZeroPage, kZeroPage}, {2, 0, kChunk - 2 * kZeroPage}});
    CHECK(cut[2] == std::vector<Part>{{2, kChunk - 2 * kZeroPage, kChunk}});
    CHECK(cut[3] == std::vector<Part>{{2, 2 * kChunk - 2 * kZeroPage, 2 * kZeroPage}});
    CHECK(chunks({}).empty());
}

TEST_CASE("if copying ends early, the blocks leave that are copied as a whole") {
    const auto all = chunks({{0, 0, kChunk + kZeroPage}, {1, 0, kZeroPage}, {2, 0, 2 * kChunk}, {4, 0, kZeroPage}});
    REQUIRE(all.size() == 4);
    auto cut = all;
    CHECK(cut_to_whole_blocks(cut, 4, 5) == 5);
    CHECK(cut == all);
    CHECK(cut_to_whole_blocks(cut, 3, 5) == 2);  // of block 2 a part has not been copied
    CHECK(cut == std::vector<std::vector<Part>>{all[0], {{0, kChunk, kZeroPage}, {1, 0, kZeroPage}}});
    cut = all;
    CHECK(cut_to_whole_blocks(cut, 1, 5) == 0);
    CHECK(cut.empty());
    cut = all;
    CHECK(cut_to_whole_blocks(cut, 0, 5) == 0);
    CHECK(ends_copying(14 * GiB, 200 * GiB));
    CHECK_FALSE(ends_copying(16 * GiB, 200 * GiB));
}

TEST_CASE("as many threads copy as the process may use processors, at most eight") {
    CHECK(copying_threads(0, {}) == 1);
    CHECK(copying_threads(3, {}) == 3);
    CHECK(copying_threads(128, {}) == 8);
    CHECK(copying_threads(128, 0.5) == 1);
    CHECK(copying_threads(128, 2.0) == 2);
    CHECK(copying_threads(128, 2.5) == 3);
    CHECK(copying_threads(2, 2.5) == 2);
    CHECK(copying_threads(128, 1e9) == 8);
}

TEST_CASE("the driver moves the rest after the policy's time, or at once if too little is free, or never") {
    using namespace std::chrono_literals;
    CHECK_FALSE(goes_deep(9999ms, 10s, false));
    CHECK(goes_deep(10s, 10s, false));
    CHECK(goes_deep(0s, 10s, true));
    CHECK_FALSE(goes_deep(1h, Duration::max(), true));
}
