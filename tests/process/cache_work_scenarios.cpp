// The cache and what the device is doing: work in progress, many threads, captures, contexts that end meanwhile.

#include <atomic>

#include "kept_blocks.hpp"

using namespace scenario;

namespace {

constexpr const char *kBusy = "curb-sim-module\nkernel busy us=300 blocks=1\nkernel long us=20000 blocks=1\n";

void run_on(CUfunction busy, CUstream stream, CUdeviceptr block) {
    void *arguments[] = {&block};
    MUST(cuLaunchKernel(busy, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr));
}

CUstream make_stream() {
    CUstream stream = nullptr;
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

}  // namespace

SCENARIO_NAMED(a_block_is_kept_only_when_the_device_has_finished_with_it) {
    const CUcontext context = start();
    const CUfunction busy = kernel_of(load_module(kBusy), "busy");
    const Asked asked;
    constexpr int kThreads = 8, kRounds = 150;
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kThreads; ++thread)
        threads.emplace_back([=] {
            MUST(cuCtxSetCurrent(context));
            const CUstream stream = make_stream();
            for (int round = 0; round < kRounds; ++round) {
                const CUdeviceptr block = take((round % 3 + 1) * MiB);
                run_on(busy, stream, block);
                MUST(cuMemFree_v2(block));  // without waiting: the free does
                EXPECT_EQ(cuStreamQuery(stream), CUDA_SUCCESS);
            }
        });
    for (std::thread &thread : threads) thread.join();
    EXPECT_EQ(curb_sim_overlaps(0), 0U);
    EXPECT(asked.allocations() < kThreads * kRounds / 10);
    nothing_is_left_but(kContext);
}

// What the checking device is worth: the same without the free's wait, by a program that hands blocks out itself.
SCENARIO_NAMED(the_device_notices_a_block_that_is_used_twice_at_once) {
    start();
    const CUfunction busy = kernel_of(load_module(kBusy), "busy");
    const CUdeviceptr block = take(2 * MiB);
    const CUstream one = make_stream(), other = make_stream();
    run_on(busy, one, block);
    run_on(busy, one, block);
    EXPECT_EQ(curb_sim_overlaps(0), 0U);
    run_on(busy, other, block + 1 * MiB);
    EXPECT_EQ(curb_sim_overlaps(0), 1U);
}

// As cuMemFree: for the work of the block's context, also if another is current, and not for that of the other.
SCENARIO_NAMED(work_of_the_blocks_context_alone_is_waited_for) {
    const CUcontext first = start();
    const CUfunction of_first = kernel_of(load_module(kBusy), "busy");
    const CUstream of_block = make_stream();
    CUcontext second = nullptr;
    MUST(cuCtxCreate_v2(&second, 0, 0));
    const CUfunction of_second = kernel_of(load_module(kBusy), "long");
    const CUstream elsewhere = make_stream();
    const CUdeviceptr others = take(2 * MiB);
    const Asked asked;
    int still_busy = 0;
    for (int round = 0; round < 50; ++round) {
        MUST(cuCtxSetCurrent(first));
        const CUdeviceptr block = take(2 * MiB);
        run_on(of_first, of_block, block);
        MUST(cuCtxSetCurrent(second));
        run_on(of_second, elsewhere, others);
        if (round % 2 == 0) MUST(cuCtxSetCurrent(first));
        MUST(cuMemFree_v2(block));
        CUcontext current = nullptr;
        MUST(cuCtxGetCurrent(&current));
        EXPECT(current == (round % 2 == 0 ? first : second));
        MUST(cuCtxSetCurrent(second));
        still_busy += cuStreamQuery(elsewhere) == CUDA_ERROR_NOT_READY;
        MUST(cuStreamSynchronize(elsewhere));
        MUST(cuCtxSetCurrent(first));
        EXPECT_EQ(cuStreamQuery(of_block), CUDA_SUCCESS);
        const CUdeviceptr again = take(2 * MiB);
        EXPECT_EQ(again, block);
        run_on(of_first, nullptr, again);
        MUST(cuMemFree_v2(again));
    }
    EXPECT(still_busy > 0);
    EXPECT_EQ(asked.allocations(), 1U);
    EXPECT_EQ(curb_sim_overlaps(0), 0U);
}

SCENARIO_NAMED(nothing_is_kept_or_handed_out_during_a_capture) {
    const CUcontext context = start();
    const CUdeviceptr kept = keep(2 * MiB), live = take(4 * MiB);
    const CUstream stream = make_stream();
    MUST(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    std::thread([&] {
        MUST(cuCtxSetCurrent(context));
        CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
        MUST(cuThreadExchangeStreamCaptureMode(&mode));
        EXPECT(driver_frees(live));
        const CUdeviceptr fresh = take(2 * MiB);
        EXPECT(fresh != kept);
        EXPECT(driver_frees(fresh));
        // A request that needs the room gets it, and the capture goes on.
        EXPECT(driver_frees(take(378 * MiB)));
    }).join();
    CUgraph graph = nullptr;
    MUST(cuStreamEndCapture(stream, &graph));
    EXPECT_EQ(curb_sim_held(0), kContext);
    EXPECT(!driver_frees(take(2 * MiB)));
}

namespace {

// Takes and frees as fast as it can, until told to end.
template <class Work>
std::thread keep_doing(CUcontext context, const std::atomic<bool> &end, Work work) {
    return std::thread([=, &end] {
        MUST(cuCtxSetCurrent(context));
        for (unsigned random = 1; !end.load(); random = random * 1664525U + 1013904223U) work(random >> 8);
    });
}

}  // namespace

// Whoever gives blocks up visits their context, and whoever destroys that waits.
SCENARIO_NAMED(contexts_end_while_their_blocks_are_being_given_up) {
    const CUcontext primary = start();
    std::atomic<bool> end = false;
    std::vector<std::thread> threads;
    threads.push_back(keep_doing(primary, end, [](unsigned) { kill(getpid(), SIGUSR1); }));
    threads.push_back(keep_doing(primary, end, [](unsigned random) {
        CUdeviceptr block = 0;
        if (cuMemAlloc_v2(&block, (random % 200 + 1) * MiB) == CUDA_SUCCESS) MUST(cuMemFree_v2(block));
    }));
    for (int round = 0; round < 150; ++round) {
        CUcontext own = nullptr;
        MUST(cuCtxCreate_v2(&own, 0, 0));
        for (unsigned i = 0; i < 6; ++i) {
            CUdeviceptr block = 0;
            if (cuMemAlloc_v2(&block, (i % 3 + 1) * MiB) == CUDA_SUCCESS && i != 5) MUST(cuMemFree_v2(block));
        }
        MUST(cuCtxDestroy_v2(own));
    }
    end = true;
    for (std::thread &thread : threads) thread.join();
    MUST(cuCtxSetCurrent(primary));
    nothing_is_left_but(kContext);
}

// The device is busy, so a block that is given up stays for a while between the books and the driver.
SCENARIO_NAMED(a_context_is_not_destroyed_under_a_block_that_is_being_given_up) {
    const CUcontext primary = start();
    CUcontext own = nullptr;
    MUST(cuCtxCreate_v2(&own, 0, 0));
    keep(64 * MiB);
    MUST(cuCtxSetCurrent(primary));
    const CUfunction slow = kernel_of(load_module("curb-sim-module\nkernel slow us=300000\n"), "slow");
    MUST(launch(slow));
    kill(getpid(), SIGUSR1);
    EXPECT(soon([] { return curb_sim_calls("cuMemFree_v2") == 1; }));
    MUST(cuCtxDestroy_v2(own));
    EXPECT_EQ(curb_sim_held(0), kContext);
    EXPECT_EQ(told_held(), kContext);
}

// One thread resets the primary context and takes it again, another tries to destroy it, which the driver refuses. Both
// wait for a third, which has a block of it kept; then one of them finds a newer context under the same handle.
SCENARIO_NAMED(a_context_that_is_made_again_while_it_is_waited_for_has_its_cache) {
    const CUcontext primary = start();
    CUcontext own = nullptr;
    MUST(cuCtxCreate_v2(&own, 0, 0));
    for (int round = 0; round < 60 && failures == 0; ++round) {
        MUST(cuCtxSetCurrent(primary));
        const CUdeviceptr block = take(2 * MiB);
        run_on(kernel_of(load_module("curb-sim-module\nkernel busy us=2000\n"), "busy"), nullptr, block);
        std::thread keeps([=] {
            MUST(cuCtxSetCurrent(own));
            cuMemFree_v2(block);
        });
        std::thread destroys([=] { EXPECT_EQ(cuCtxDestroy_v2(primary), CUDA_ERROR_INVALID_CONTEXT); });
        std::thread resets([] {
            MUST(cuDevicePrimaryCtxReset_v2(0));
            start();
        });
        for (std::thread *thread : {&keeps, &destroys, &resets}) thread->join();
        const CUdeviceptr kept = keep(4 * MiB);
        EXPECT_EQ(take(4 * MiB), kept);
        MUST(cuDevicePrimaryCtxReset_v2(0));
        start();
    }
}

// At the cap, with hits, misses, evictions and releases at once.
SCENARIO_NAMED(threads_with_a_cache_never_hold_more_than_the_cap) {
    const CUcontext context = start();
    std::atomic<bool> end = false;
    std::thread releases = keep_doing(context, end, [](unsigned) { kill(getpid(), SIGUSR1); });
    take_and_free_at_random(context, 6, 1500, 2, [](unsigned random) {
        constexpr std::uint64_t kSizes[] = {4 * KiB, 900 * KiB, 2 * MiB, 33 * MiB, 90 * MiB};
        return kSizes[(random >> 8) % 5];
    });
    end = true;
    releases.join();
    nothing_is_left_but(kContext);
}
