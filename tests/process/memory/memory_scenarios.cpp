// Memory that programs request by its size, under a cap: the driver's books, refusals, and what comes back.

#include "memory.hpp"

using namespace scenario;

SCENARIO_NAMED(growth_of_a_pool_that_is_undone_during_a_capture_does_not_pile_up) {
    start();
    const CUmemoryPool pool = make_pool();
    keep_everything(pool);
    std::vector<CUdeviceptr> blocks(12);
    for (CUdeviceptr &block : blocks) MUST(cuMemAllocFromPoolAsync(&block, 16 * MiB, pool, nullptr));
    for (std::size_t i = 0; i < blocks.size(); i += 2) MUST(cuMemFreeAsync(blocks[i], nullptr));
    CUdeviceptr block = 0;
    fill([&] { return cuMemAlloc_v2(&block, 2 * MiB); });
    const CUstream captured = make_stream();
    MUST(cuStreamBeginCapture_v2(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
    // Idle memory is in pieces of 16 MiB, so the pool grows for 24 MiB, unless memory of an undone request is free.
    for (int i = 0; i < 40; ++i) cuMemAllocFromPoolAsync(&block, 24 * MiB, pool, nullptr);
    EXPECT(curb_sim_high(0) <= kCap);
    CUgraph graph = nullptr;
    MUST(cuStreamEndCapture(captured, &graph));
    EXPECT_EQ(cuMemAlloc_v2(&block, 2 * MiB), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT(curb_sim_held(0) <= kCap);
}

SCENARIO_NAMED(a_pool_whose_idle_memory_is_in_pieces_grows_only_within_the_cap) {
    start();
    keep_everything(default_pool());
    std::vector<CUdeviceptr> blocks(11);
    for (CUdeviceptr &block : blocks) MUST(cuMemAllocAsync(&block, 32 * MiB, nullptr));
    for (std::size_t i = 0; i < blocks.size(); i += 2) MUST(cuMemFreeAsync(blocks[i], nullptr));
    CUdeviceptr block = 0;
    const CUstream captured = make_stream();
    MUST(cuStreamBeginCapture_v2(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT_EQ(cuMemAllocAsync(&block, 192 * MiB, nullptr), CUDA_ERROR_OUT_OF_MEMORY);  // nothing can be trimmed
    CUgraph graph = nullptr;
    MUST(cuStreamEndCapture(captured, &graph));
    MUST(cuMemAllocAsync(&block, 192 * MiB, nullptr));  // the pieces are trimmed first
    EXPECT(curb_sim_high(0) <= kCap);
    EXPECT_EQ(shown_held(), curb_sim_held(0));
}

// The driver has taken for code what the cap keeps for it, and the pool cannot grow.
SCENARIO_NAMED(threads_share_the_idle_memory_of_a_pool_that_cannot_grow) {
    start();
    keep_everything(default_pool());
    std::vector<CUdeviceptr> blocks(88);
    for (CUdeviceptr &block : blocks) MUST(cuMemAllocAsync(&block, 4 * MiB, nullptr));
    for (std::size_t i = 0; i < blocks.size(); i += 8) MUST(cuMemFreeAsync(blocks[i], nullptr));
    load_module("curb-sim-module global=144MiB\n");
    EXPECT(curb_sim_held(0) > kCap - 32 * MiB);
    in_threads(8, [](unsigned) {
        for (int i = 0; i < 200; ++i) {
            CUdeviceptr block = 0;
            MUST(cuMemAllocAsync(&block, 1 * MiB, nullptr));
            MUST(cuMemFreeAsync(block, nullptr));
        }
    });
    EXPECT(curb_sim_high(0) <= kCap);
}

SCENARIO_NAMED(stream_ordered_memory_stops_at_the_cap) {
    start();
    const CUstream stream = make_stream();
    keep_everything(default_pool());
    std::vector<CUdeviceptr> blocks;
    fill([&] {
        CUdeviceptr pointer = 0;
        const CUresult result = cuMemAllocAsync(&pointer, 32 * MiB, stream);
        if (result == CUDA_SUCCESS) blocks.push_back(pointer);
        return result;
    });
    EXPECT_EQ(blocks.size(), 11U);  // (1024 - 128 - 518) / 32
    EXPECT_EQ(shown_held(), curb_sim_held(0));
    // Freed, but kept by the pool: still held, and served again without growth.
    for (const CUdeviceptr block : blocks) MUST(cuMemFreeAsync(block, stream));
    EXPECT(curb_sim_held(0) > 800 * MiB);
    EXPECT_EQ(shown_held(), curb_sim_held(0));
    CUdeviceptr again = 0;
    MUST(cuMemAllocAsync(&again, 200 * MiB, stream));
    EXPECT(curb_sim_held(0) <= kCap);
    MUST(cuMemFreeAsync(again, stream));
    // curb trims the pool before it refuses.
    MUST(cuStreamSynchronize(stream));
    const CUdeviceptr plain = take(352 * MiB);
    EXPECT_EQ(curb_sim_held(0), kContext + 352 * MiB);
    EXPECT_EQ(shown_held(), curb_sim_held(0));
    MUST(cuMemFree_v2(plain));
}

SCENARIO_NAMED(frees_that_the_host_has_not_seen_complete_are_waited_for_before_a_refusal) {
    start();
    const CUstream stream = make_stream();
    keep_everything(default_pool());
    CUdeviceptr block = 0;
    MUST(cuMemAllocAsync(&block, 352 * MiB, stream));
    MUST(cuMemFreeAsync(block, stream));
    MUST(cuMemFree_v2(take(352 * MiB)));
    EXPECT_EQ(curb_sim_held(0), kContext);
}

SCENARIO_NAMED(pool_memory_that_came_back_unseen_is_not_lost_to_the_cap) {
    start();
    const CUstream stream = make_stream(CU_STREAM_DEFAULT);
    CUdeviceptr block = 0, second = 0;
    MUST(cuMemAllocAsync(&block, 256 * MiB, stream));
    MUST(cuMemFreeAsync(block, stream));
    MUST(cuStreamSynchronize(stream));  // the pool's threshold is 0: it returns its memory, and curb does not see it
    EXPECT_EQ(curb_sim_held(0), kContext);
    // curb measures again, and then reports exactly what is held.
    std::uint64_t shown = 0;
    EXPECT(within(std::chrono::seconds(1), [&] { return (shown = shown_held()) <= kContext; }));
    EXPECT_EQ(shown, kContext);
    MUST(cuMemAlloc_v2(&block, 352 * MiB));
    EXPECT_EQ(cuMemAlloc_v2(&second, 32 * MiB), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(shown_held(), curb_sim_held(0));
}

SCENARIO_NAMED(mapped_memory_is_held_by_references_and_mappings) {
    start();
    const auto first = take_physical(64 * MiB), second = take_physical(64 * MiB);
    CUmemGenericAllocationHandle retained = 0;
    EXPECT_EQ(shown_held(), kContext + 128 * MiB);
    CUdeviceptr address = 0;
    MUST(cuMemAddressReserve(&address, 4 * GiB, 0, 0, 0));  // addresses are not memory
    EXPECT_EQ(shown_held(), curb_sim_held(0));
    MUST(cuMemMap(address, 64 * MiB, 0, first, 0));
    MUST(cuMemMap(address + 64 * MiB, 64 * MiB, 0, second, 0));
    // Released right after mapping: the mapping keeps the memory.
    MUST(cuMemRelease(first));
    MUST(cuMemRelease(second));
    EXPECT_EQ(shown_held(), kContext + 128 * MiB);
    EXPECT_EQ(shown_held(), curb_sim_held(0));
    MUST(cuMemRetainAllocationHandle(&retained, reinterpret_cast<void *>(address)));
    MUST(cuMemUnmap(address, 128 * MiB));          // one call, two mappings
    EXPECT_EQ(shown_held(), kContext + 64 * MiB);  // the retained reference
    EXPECT_EQ(shown_held(), curb_sim_held(0));
    MUST(cuMemRelease(retained));
    EXPECT_EQ(shown_held(), kContext);
    EXPECT_EQ(curb_sim_held(0), kContext);
}

SCENARIO_NAMED(senseless_arguments_get_the_drivers_answer_and_leave_the_books) {
    start();
    CUdeviceptr pointer = 0;
    EXPECT_EQ(cuMemAlloc_v2(nullptr, 4096), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemAlloc_v2(&pointer, 0), CUDA_ERROR_INVALID_VALUE);
    for (const std::size_t absurd : {std::size_t{1} << 63, ~std::size_t{0}, ~std::size_t{0} - 5}) {
        EXPECT_EQ(cuMemAlloc_v2(&pointer, absurd), CUDA_ERROR_OUT_OF_MEMORY);
        EXPECT_EQ(cuMemAllocAsync(&pointer, absurd, nullptr), CUDA_ERROR_OUT_OF_MEMORY);
    }
    EXPECT_EQ(cuMemAllocAsync(nullptr, 4096, nullptr), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemFree_v2(0x1234), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemFree_v2(0), CUDA_SUCCESS);
    const CUdeviceptr once = take(4 * MiB);
    MUST(cuMemFree_v2(once));
    EXPECT_EQ(cuMemFree_v2(once), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemCreate(nullptr, 2 * MiB, nullptr, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuMemRelease(0x1234) != CUDA_SUCCESS);
    EXPECT(cuMemUnmap(0x1000, 4096) != CUDA_SUCCESS);
    std::size_t pitch = 0;
    EXPECT_EQ(cuMemAllocPitch_v2(&pointer, &pitch, 0, 5, 4), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(shown_held(), kContext);
    EXPECT_EQ(curb_sim_held(0), kContext);
}

SCENARIO_NAMED(the_process_ends_with_everything_live) {
    start();
    const CUstream stream = make_stream(), capturing = make_stream();
    take(32 * MiB);
    CUdeviceptr block = 0;
    MUST(cuMemAllocManaged(&block, 32 * MiB, CU_MEM_ATTACH_GLOBAL));
    MUST(cuMemAllocAsync(&block, 32 * MiB, stream));
    take_physical(32 * MiB);
    CUarray array = nullptr;
    const CUDA_ARRAY3D_DESCRIPTOR description = floats(1024, 1024, 8, 0);
    MUST(cuArray3DCreate_v2(&array, &description));
    const AllocatingGraph graph(32 * MiB);
    MUST(cuGraphLaunch(graph.executable, stream));
    MUST(launch(kernel_of(load_module("curb-sim-module\nkernel k\n"), "k")));
    EXPECT_EQ(shown_held(curb_sim_held(0) - kContext - 160 * MiB),
              curb_sim_held(0) + 32 * MiB);  // managed memory is charged
    MUST(cuStreamBeginCapture_v2(capturing, CU_STREAM_CAPTURE_MODE_GLOBAL));
}

SCENARIO_NAMED(the_drivers_own_errors_come_through_and_the_books_balance) {  // CURB_SIM_FAULT makes calls fail
    start();
    CUdeviceptr pointer = 0;
    EXPECT_EQ(cuMemAlloc_v2(&pointer, 4 * MiB), CUDA_ERROR_UNKNOWN);
    EXPECT_EQ(shown_held(), kContext);
    pointer = take(4 * MiB);
    EXPECT_EQ(cuMemFree_v2(pointer), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(shown_held(), kContext + 4 * MiB);  // not freed, so still held
    MUST(cuMemFree_v2(pointer));
    const CUmemAllocationProp properties = on_device(0);
    CUmemGenericAllocationHandle handle = 0;
    EXPECT_EQ(cuMemCreate(&handle, 4 * MiB, &properties, 0), CUDA_ERROR_NOT_SUPPORTED);
    MUST(cuMemCreate(&handle, 4 * MiB, &properties, 0));
    EXPECT_EQ(cuMemRelease(handle), CUDA_ERROR_UNKNOWN);
    EXPECT_EQ(shown_held(), kContext + 4 * MiB);
    MUST(cuMemRelease(handle));
    EXPECT_EQ(cuMemAllocAsync(&pointer, 4 * MiB, nullptr), CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(shown_held(), kContext);
    EXPECT_EQ(curb_sim_held(0), kContext);
}
