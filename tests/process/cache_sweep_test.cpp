// What the timer does to the cache: it gives up what lay unused for too long, and is woken when there is something to
// give up again. libcurb.so's own parts, linked into this program in front of the simulated driver, so that the test
// can be the timer.

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "cache.hpp"
#include "catch.hpp"
#include "sim.h"

using namespace curb::shim;

namespace {

constexpr std::uint64_t kMiB = 1ULL << 20, kContext = 518 * kMiB;
constexpr std::uint64_t kIdleMs = 300;

std::atomic<int> wakes{0};

// CUDA with a cache, once for all cases: a process has one policy.
void start() {
    static const bool once = [] {
        const auto file = std::filesystem::temp_directory_path() / ("curb-sweep-" + std::to_string(getpid()) + ".json");
        std::ofstream(file) << R"({ "version": 1, "gpu": { "*": { "cache": { "max": "1GiB", "idle": "300ms" } } } })";
        setenv("CURB_POLICY", file.c_str(), 1);
        CUcontext context = nullptr;
        REQUIRE(cuInit(0) == CUDA_SUCCESS);
        std::filesystem::remove(file);
        REQUIRE(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
        REQUIRE(cuCtxSetCurrent(context) == CUDA_SUCCESS);
        cache::on_first_kept([] { ++wakes; });
        return true;
    }();
    REQUIRE(once);
    while (cache::sweep()) std::this_thread::sleep_for(std::chrono::milliseconds(kIdleMs));
    wakes = 0;
}

CUdeviceptr take(std::uint64_t bytes) {
    CUdeviceptr block = 0;
    REQUIRE(cuMemAlloc_v2(&block, bytes) == CUDA_SUCCESS);
    return block;
}

void keep(std::uint64_t bytes) { REQUIRE(cuMemFree_v2(take(bytes)) == CUDA_SUCCESS); }

std::uint64_t held() { return curb_sim_held(0); }

}  // namespace

TEST_CASE("a block that lay unused for as long as the policy lets it is given up, and not before") {
    start();
    const auto freed = std::chrono::steady_clock::now();
    keep(2 * kMiB);
    const auto due = cache::sweep();
    REQUIRE(due);
    CHECK(*due <= kIdleMs);
    CHECK(held() == kContext + 2 * kMiB);
    while (const auto next = cache::sweep()) std::this_thread::sleep_for(std::chrono::milliseconds(*next));
    CHECK(held() == kContext);
    // By a clock that goes on every 4 ms.
    CHECK(std::chrono::steady_clock::now() - freed >= std::chrono::milliseconds(kIdleMs - 5));
}

TEST_CASE("a block that is used again begins anew, and one that is not is given up beside it") {
    start();
    keep(2 * kMiB);
    keep(64 * kMiB);
    const auto begun = std::chrono::steady_clock::now();
    const auto passed = [&] { return std::chrono::steady_clock::now() - begun; };
    while (passed() < std::chrono::milliseconds(2 * kIdleMs)) {
        keep(2 * kMiB);
        REQUIRE(cache::sweep());
    }
    CHECK(held() == kContext + 2 * kMiB);
}

TEST_CASE("an alloc and free loop wakes the timer once, until that has found nothing") {
    start();
    for (int i = 0; i < 1000; ++i) keep(2 * kMiB);
    CHECK(wakes == 1);
    while (const auto next = cache::sweep()) std::this_thread::sleep_for(std::chrono::milliseconds(*next));
    CHECK(wakes == 1);
    keep(2 * kMiB);
    CHECK(wakes == 2);
    // What was there before somebody wanted to know.
    cache::on_first_kept([] { wakes += 100; });
    CHECK(wakes == 2);
    const CUdeviceptr block = take(2 * kMiB);
    CHECK_FALSE(cache::sweep());
    REQUIRE(cuMemFree_v2(block) == CUDA_SUCCESS);
    CHECK(wakes == 102);
}
