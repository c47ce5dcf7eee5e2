// Kept blocks: which requests get one, how much curb keeps, and which memory it never keeps.

#include "kept_blocks.hpp"

using namespace scenario;

SCENARIO_NAMED(a_freed_block_is_handed_out_again_without_the_driver) {
    start();
    for (const std::uint64_t bytes : {std::uint64_t{1}, 4 * KiB, 64 * KiB, 1 * MiB, 1 * MiB + 1, 2 * MiB, 200 * MiB}) {
        const CUdeviceptr block = keep(bytes);
        const std::uint64_t held = curb_sim_held(0);
        const Asked asked;
        for (int i = 0; i < 10; ++i) {
            EXPECT_EQ(take(bytes), block);
            CUdeviceptr base = 0;
            std::size_t size = 0;
            MUST(cuMemGetAddressRange_v2(&base, &size, block));
            EXPECT_EQ(base, block);
            EXPECT_EQ(size, bytes);
            MUST(cuMemsetD8_v2(block, 1, bytes));
            MUST(cuMemFree_v2(block));
        }
        EXPECT_EQ(asked.allocations(), 0U);
        EXPECT_EQ(asked.frees(), 0U);
        EXPECT_EQ(curb_sim_held(0), held);
    }
    nothing_is_left_but(kContext);
}

SCENARIO_NAMED(a_device_that_has_failed_hands_out_no_kept_block) {
    start();
    const CUfunction kernel = kernel_of(load_module("image"), "kernel");
    const CUdeviceptr block = keep(3 * MiB);
    MUST(launch(kernel));
    EXPECT_EQ(take(3 * MiB), block);  // the device has not failed
    MUST(cuMemFree_v2(block));
    MUST(launch(kernel));
    curb_sim_break(CUDA_ERROR_ILLEGAL_ADDRESS);
    CUdeviceptr none = 0;
    EXPECT_EQ(cuMemAlloc_v2(&none, 3 * MiB), CUDA_ERROR_ILLEGAL_ADDRESS);
    curb_sim_break(CUDA_SUCCESS);
    EXPECT_EQ(take(3 * MiB), block);
}

SCENARIO_NAMED(only_a_request_of_exactly_the_same_size_gets_a_kept_block) {
    start();
    const CUdeviceptr kept = keep(3 * MiB);
    for (const std::uint64_t bytes : {3 * MiB - 1, 3 * MiB + 1, 4 * MiB, 2 * MiB}) EXPECT(take(bytes) != kept);
    CUdeviceptr pitched = 0, managed = 0, ordered = 0;
    std::size_t pitch = 0;
    MUST(cuMemAllocPitch_v2(&pitched, &pitch, 3 * MiB, 1, 4));
    MUST(cuMemAllocManaged(&managed, 3 * MiB, CU_MEM_ATTACH_GLOBAL));
    MUST(cuMemAllocAsync(&ordered, 3 * MiB, nullptr));
    EXPECT(pitched != kept && managed != kept && ordered != kept);
    EXPECT_EQ(take(3 * MiB), kept);
    EXPECT(take(3 * MiB) != kept);
}

SCENARIO_NAMED(only_what_cumemalloc_gave_is_kept) {
    start();
    CUdeviceptr pitched = 0, managed = 0, ordered = 0;
    std::size_t pitch = 0;
    MUST(cuMemAllocPitch_v2(&pitched, &pitch, 1000, 1000, 4));
    MUST(cuMemAllocManaged(&managed, 3 * MiB, CU_MEM_ATTACH_GLOBAL));
    MUST(cuMemAllocAsync(&ordered, 3 * MiB, nullptr));
    for (const CUdeviceptr block : {pitched, managed, ordered}) EXPECT(driver_frees(block));
    // cuMemFreeAsync frees only when the stream gets there, so curb cannot keep the block.
    const CUdeviceptr plain = take(3 * MiB);
    MUST(cuMemFreeAsync(plain, nullptr));
    EXPECT_EQ(curb_sim_calls("cuMemFreeAsync"), 1U);
    EXPECT(driver_frees(take(300 * MiB)));  // more than the cache may keep
    MUST(cuCtxSynchronize());
    nothing_is_left_but(kContext);
}

SCENARIO_NAMED(no_more_is_kept_than_the_policy_says_and_the_oldest_goes_first) {
    start();
    std::vector<CUdeviceptr> blocks;
    for (int i = 0; i < 5; ++i) blocks.push_back(take(64 * MiB));
    for (const CUdeviceptr block : blocks) {
        MUST(cuMemFree_v2(block));
        EXPECT(curb_sim_held(0) <= kContext + 5 * 64 * MiB);
    }
    EXPECT_EQ(curb_sim_held(0), kContext + kMostKept);
    EXPECT_EQ(shown_held(), kContext);
    // Requests get the newest block first: it is the likeliest to be in the device's own caches.
    const Asked asked;
    for (std::size_t i = 4; i > 0; --i) EXPECT_EQ(take(64 * MiB), blocks[i]);
    EXPECT_EQ(asked.allocations(), 0U);
    EXPECT_EQ(shown_held(), curb_sim_held(0));
}

// Blocks of 4 KiB: freeing one returns its granule only if the rest of the granule is free too.
SCENARIO_NAMED(blocks_that_share_granules_count_by_what_they_keep_from_the_device) {
    start();
    std::vector<CUdeviceptr> blocks;
    for (int i = 0; i < 4 * 512; ++i) blocks.push_back(take(4 * KiB));
    EXPECT_EQ(curb_sim_held(0), kContext + 8 * MiB);
    for (std::size_t i = 0; i < blocks.size(); i += 2) MUST(cuMemFree_v2(blocks[i]));
    EXPECT_EQ(shown_held(), kContext + 8 * MiB);  // freeing the kept blocks would return nothing
    for (std::size_t i = 1; i < blocks.size(); i += 2) MUST(cuMemFree_v2(blocks[i]));
    EXPECT_EQ(shown_held(), kContext);
    EXPECT_EQ(curb_sim_held(0), kContext + 8 * MiB);
    const Asked asked;
    std::vector<CUdeviceptr> again;
    for (std::size_t i = 0; i < blocks.size(); ++i) again.push_back(take(4 * KiB));
    EXPECT_EQ(asked.allocations(), 0U);
    EXPECT_EQ(shown_held(), kContext + 8 * MiB);
    std::sort(blocks.begin(), blocks.end());
    std::sort(again.begin(), again.end());
    EXPECT(blocks == again);
    // A new block in a granule of kept blocks puts that granule in use.
    for (const CUdeviceptr block : again) MUST(cuMemFree_v2(block));
    const CUdeviceptr other = take(8 * KiB);
    EXPECT_EQ(shown_held(), curb_sim_held(0) - 8 * MiB);
    MUST(cuMemFree_v2(other));
    nothing_is_left_but(kContext);
}

namespace {

// Ways to let others reach a block. Each gets the block and an address in the middle of it.
struct Way {
    const char *name;
    CUresult (*share)(CUdeviceptr block, CUdeviceptr inside);
};
const Way kWays[] = {
    {"IPC",
     [](CUdeviceptr, CUdeviceptr inside) {
         CUipcMemHandle handle;
         return cuIpcGetMemHandle(&handle, inside);
     }},
    {"dma-buf",
     [](CUdeviceptr block, CUdeviceptr) {
         int file = -1;
         const CUresult result =
             cuMemGetHandleForAddressRange(&file, block + 4 * KiB, 4 * KiB, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
         if (file >= 0) close(file);
         return result;
     }},
    {"SYNC_MEMOPS",
     [](CUdeviceptr, CUdeviceptr inside) {
         const unsigned yes = 1;
         return cuPointerSetAttribute(&yes, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, inside);
     }},
    {"BUFFER_ID",
     [](CUdeviceptr, CUdeviceptr inside) {
         unsigned long long id = 0;
         return cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, inside);
     }},
    {"whether RDMA can be used",
     [](CUdeviceptr, CUdeviceptr inside) {
         unsigned capable = 0, type = 0;
         CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                             CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE};
         void *values[] = {&type, &capable};
         const CUresult result = cuPointerGetAttributes(2, attributes, values, inside);
         return type == CU_MEMORYTYPE_DEVICE ? result : CUDA_ERROR_INVALID_VALUE;
     }},
};

}  // namespace

SCENARIO_NAMED(memory_within_the_reach_of_others_is_not_kept) {
    start();
    for (const Way &way : kWays) {
        const CUdeviceptr block = take(2 * MiB);
        EXPECT_EQ(way.share(block, block + 1 * MiB), CUDA_SUCCESS);
        if (!driver_frees(block)) std::fprintf(stderr, "%s: the block was kept\n", way.name), ++failures;
        // The program has freed this block: curb frees it in the driver too, which then answers that it is not there.
        const CUdeviceptr kept = keep(2 * MiB);
        EXPECT(way.share(kept, kept + 1 * MiB) == CUDA_ERROR_INVALID_VALUE);
        EXPECT_EQ(curb_sim_held(0), kContext);
    }
    // Asking for the type of a pointer shares nothing.
    const CUdeviceptr block = take(2 * MiB);
    unsigned type = 0;
    MUST(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, block));
    EXPECT_EQ(type, unsigned{CU_MEMORYTYPE_DEVICE});
    EXPECT(!driver_frees(block));
    nothing_is_left_but(kContext);
}

SCENARIO_NAMED(what_is_freed_twice_gets_the_drivers_answer) {
    start();
    CUdeviceptr block = keep(4 * MiB);
    EXPECT_EQ(cuMemFree_v2(block), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(curb_sim_held(0), kContext);
    block = keep(4 * KiB);
    EXPECT_EQ(cuMemFreeAsync(block, nullptr), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(curb_sim_held(0), kContext);
    const Asked asked;
    MUST(cuMemFree_v2(take(4 * MiB)));
    EXPECT_EQ(asked.allocations(), 1U);
    nothing_is_left_but(kContext);
}

// CURB_SIM_FAULT: the first two cuCtxSynchronize report an illegal address, and the second cuMemFree too.
SCENARIO_NAMED(nothing_is_kept_when_the_driver_reports_an_error) {
    start();
    EXPECT(driver_frees(take(2 * MiB)));
    const CUdeviceptr block = take(2 * MiB);
    EXPECT_EQ(static_cast<int>(cuMemFree_v2(block)), 700);
    EXPECT_EQ(shown_held(), kContext + 2 * MiB);  // it is still allocated
    EXPECT(!driver_frees(block));
    nothing_is_left_but(kContext);
}

// CURB_SIM_FAULT: the first two cuMemFree fail. curb makes them.
SCENARIO_NAMED(a_kept_block_that_the_driver_will_not_free_stays_kept) {
    start();
    const CUdeviceptr block = keep(64 * MiB);
    kill(getpid(), SIGUSR1);
    EXPECT(soon([] { return curb_sim_calls("cuMemFree_v2") == 2; }));
    EXPECT(soon([] { return shown_held() == kContext; }));  // the program sees kept blocks as free
    EXPECT_EQ(take(64 * MiB), block);
    EXPECT_EQ(curb_sim_held(0), kContext + 64 * MiB);
    EXPECT_EQ(shown_held(), kContext + 64 * MiB);
    MUST(cuMemFree_v2(block));
    // It ends with its context at the latest.
    MUST(cuDevicePrimaryCtxReset_v2(0));
    start();
    EXPECT_EQ(curb_sim_held(0), kContext);
    EXPECT_EQ(shown_held(), kContext);
}

// A call can return an error of earlier work and still have its effect: a second one would act on what is not curb's.
SCENARIO_NAMED(nothing_is_done_twice_that_has_been_done_once) {
    constexpr int kEarlier = CUDA_ERROR_UNKNOWN;
    const CUcontext primary = start();
    // A free: the block is gone, and curb must not reuse it.
    keep(64 * MiB);
    curb_sim_report_next("cuMemFree_v2", kEarlier, 1);
    nothing_is_left_but(kContext);
    EXPECT_EQ(curb_sim_calls("cuMemFree_v2"), 1U);
    // A push and a pop for a block of another context must leave the thread's context stack as it was.
    const CUcontext own = make_context();
    for (const char *name : {"cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2"}) {
        MUST(cuCtxSetCurrent(primary));
        keep(64 * MiB);
        MUST(cuCtxSetCurrent(own));
        MUST(cuCtxPushCurrent_v2(own));
        curb_sim_report_next(name, kEarlier, 1);
        MUST(cuMemFree_v2(take(2864 * MiB)));  // fits only once the kept block is freed
        CUcontext popped = nullptr;
        MUST(cuCtxPopCurrent_v2(&popped));
        EXPECT(popped == own);
        MUST(cuCtxGetCurrent(&popped));
        EXPECT(popped == own);
    }
    MUST(cuCtxDestroy_v2(own));
    MUST(cuCtxSetCurrent(primary));
    // A release of the primary context, while the program holds another reference.
    CUcontext again = nullptr;
    unsigned flags = 0;
    int active = 0;
    MUST(cuDevicePrimaryCtxRetain(&again, 0));
    curb_sim_report_next("cuDevicePrimaryCtxRelease_v2", kEarlier, 1);
    EXPECT_EQ(cuDevicePrimaryCtxRelease_v2(0), kEarlier);
    EXPECT_EQ(curb_sim_calls("cuDevicePrimaryCtxRelease_v2"), 1U);
    MUST(cuDevicePrimaryCtxGetState(0, &flags, &active));
    EXPECT_EQ(active, 1);
    // An exchange of the thread's capture mode.
    curb_sim_report_next("cuThreadExchangeStreamCaptureMode", kEarlier, 1);
    MUST(cuMemFreeAsync(take_from_keeping_pool(MiB), nullptr));
    MUST(cuMemPoolTrimTo(default_pool(), 0));
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    MUST(cuThreadExchangeStreamCaptureMode(&mode));
    EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
}
