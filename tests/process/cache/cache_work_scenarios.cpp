// The cache while the device works: kernels in progress, many threads, captures, contexts that end meanwhile.

#include "kept_blocks.hpp"

using namespace scenario;

namespace {

constexpr const char *kBusy = "curb-sim-module\nkernel busy us=300 blocks=1\nkernel long us=20000 blocks=1\n";

void run_on(CUfunction busy, CUstream stream, CUdeviceptr block) {
    void *arguments[] = {&block};
    MUST(cuLaunchKernel(busy, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr));
}

}  // namespace

SCENARIO_NAMED(a_block_is_kept_only_when_the_device_has_finished_with_it) {
    start();
    const CUfunction busy = kernel_of(load_module(kBusy), "busy");
    const Asked asked;
    constexpr int kThreads = 8, kRounds = 150;
    in_threads(kThreads, [=](unsigned) {
        const CUstream stream = make_stream();
        for (int round = 0; round < kRounds; ++round) {
            const CUdeviceptr block = take((round % 3 + 1) * MiB);
            run_on(busy, stream, block);
            MUST(cuMemFree_v2(block));  // does not wait for the kernel: the free does
            EXPECT_EQ(cuStreamQuery(stream), CUDA_SUCCESS);
        }
    });
    EXPECT_EQ(curb_sim_overlaps(0), 0U);
    EXPECT(asked.allocations() < kThreads * kRounds / 10);
    nothing_is_left_but(kContext);
}

// Like cuMemFree, curb waits for the work of the block's own context, whichever context is current, and for no other.
SCENARIO_NAMED(work_of_the_blocks_context_alone_is_waited_for) {
    const CUcontext first = start();
    const CUfunction of_first = kernel_of(load_module(kBusy), "busy");
    const CUstream of_block = make_stream();
    const CUcontext second = make_context();
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
        // A request that needs the memory of kept blocks gets it, and the capture goes on.
        EXPECT(driver_frees(take(378 * MiB)));
    }).join();
    CUgraph graph = nullptr;
    MUST(cuStreamEndCapture(stream, &graph));
    EXPECT_EQ(curb_sim_held(0), kContext);
    EXPECT(!driver_frees(take(2 * MiB)));
}

// The device is busy, so for a while the released block is in the driver and no longer in curb's books.
SCENARIO_NAMED(a_context_is_not_destroyed_under_a_block_that_is_being_given_up) {
    const CUcontext primary = start(), own = make_context();
    keep(64 * MiB);
    MUST(cuCtxSetCurrent(primary));
    const CUfunction slow = kernel_of(load_module("curb-sim-module\nkernel slow us=300000\n"), "slow");
    MUST(launch(slow));
    kill(getpid(), SIGUSR1);
    EXPECT(soon([] { return curb_sim_calls("cuMemFree_v2") == 1; }));
    MUST(cuCtxDestroy_v2(own));
    EXPECT_EQ(curb_sim_held(0), kContext);
    EXPECT_EQ(shown_held(), kContext);
}

// One thread resets and retains the primary context, another tries to destroy it, which the driver refuses. Both wait
// for a third, whose free makes a kept block. Then one of them finds a newer context under the same handle.
SCENARIO_NAMED(a_context_that_is_made_again_while_it_is_waited_for_has_its_cache) {
    const CUcontext primary = start(), own = make_context();
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
