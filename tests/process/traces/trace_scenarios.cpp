// Programs whose traces trace_shim_test.cpp reads. Each prints "held N" to stderr, by the simulated driver's own books.

#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <csignal>

#include "kept_blocks.hpp"

using namespace scenario;

namespace {

void print_held() { std::fprintf(stderr, "held %llu\n", static_cast<unsigned long long>(curb_sim_held(0))); }

// Allocates and frees a block so often.
void take_and_free(int times, std::uint64_t bytes) {
    for (int i = 0; i < times; ++i) MUST(cuMemFree_v2(take(bytes)));
}

}  // namespace

SCENARIO_NAMED(kept_blocks_are_reused) {
    start();
    const CUdeviceptr block = keep(64 * MiB);
    EXPECT_EQ(take(64 * MiB), block);
    MUST(cuMemFree_v2(block));
    kill(getpid(), SIGUSR1);
    EXPECT(within(std::chrono::seconds(5), [] { return curb_sim_held(0) == kContext; }));
    print_held();
}

SCENARIO_NAMED(frees_at_the_very_end) {
    struct Last {
        CUdeviceptr block = 0;
        ~Last() { cuMemFree_v2(block); }
    };
    start();
    static Last last;  // constructed after the driver, so destroyed before it shuts down
    last.block = take(64 * MiB);
}

// A query of a device's name that begins during the run gets no answer before the driver has shut down.
SCENARIO_NAMED(ends_before_names_are_told) {
    curb_sim_hold_up("cuDeviceGetName", 1, 300);
    start();
}

SCENARIO_NAMED(threads_trace_as_fast_as_they_can) {
    start();
    in_threads(8, [](unsigned) { take_and_free(CURB_TRACED_PAIRS, 2 * MiB); });
    print_held();
}

SCENARIO_NAMED(a_thread_traces_as_fast_as_it_can) {
    start();
    take_and_free(4000, 2 * MiB);
    print_held();
}

extern "C" [[gnu::noinline, gnu::used, gnu::visibility("default")]] void scenario_allocates_here(std::uint64_t bytes,
                                                                                                 CUdeviceptr &block) {
    block = take(bytes);
}

SCENARIO_NAMED(two_functions_allocate) {
    start();
    CUdeviceptr block = 0;
    const volatile int times = 2;  // volatile: an unrolled loop has two calls
    void (*const volatile allocate)(std::uint64_t, CUdeviceptr &) = scenario_allocates_here;  // no inlined copy
    for (int i = 0; i < times; ++i) allocate(64 * MiB, block);
    block = take(48 * MiB);
    allocate(MiB, block);
    print_held();
}

// Two threads free their last blocks at once, again and again; in between, memory of another kind comes and goes.
SCENARIO_NAMED(threads_free_at_the_same_moment) {
    const CUcontext context = start();
    constexpr int kRounds = 3000;
    std::atomic<int> ready{0}, done{0}, looked{0};
    const auto meet = [](std::atomic<int> &at, int round) {
        at.fetch_add(1);
        while (at.load() < 2 * (round + 1)) sched_yield();
    };
    const auto take_part = [&](int round) {
        const CUdeviceptr block = take(2 * MiB);
        meet(ready, round);
        MUST(cuMemFree_v2(block));
        meet(done, round);
    };
    std::thread other([&] {
        MUST(cuCtxSetCurrent(context));
        for (int round = 0; round < kRounds; ++round) {
            take_part(round);
            meet(looked, round);
        }
    });
    for (int round = 0; round < kRounds; ++round) {
        CUdeviceptr managed = 0;
        take_part(round);
        MUST(cuMemAllocManaged(&managed, MiB, CU_MEM_ATTACH_GLOBAL));
        MUST(cuMemFree_v2(managed));
        meet(looked, round);
    }
    other.join();
}
