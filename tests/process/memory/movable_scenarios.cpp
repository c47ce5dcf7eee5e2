// Memory that curb can move: the program's own virtual memory, under handles of curb's, and blocks of cuMemAlloc.

#include <sys/wait.h>

#include <atomic>

#include "memory.hpp"

using namespace scenario;

namespace {

CUdeviceptr reserve(std::uint64_t bytes) {
    CUdeviceptr address = 0;
    MUST(cuMemAddressReserve(&address, bytes, 0, 0, 0));
    return address;
}

void map(CUdeviceptr address, CUmemGenericAllocationHandle handle, std::uint64_t bytes) {
    const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    MUST(cuMemMap(address, bytes, 0, handle, 0));
    MUST(cuMemSetAccess(address, bytes, &access, 1));
}

std::uint32_t word_at(CUdeviceptr address) {
    std::uint32_t word = 0;
    MUST(cuMemcpyDtoH_v2(&word, address, sizeof word));
    return word;
}

CUmemGenericAllocationHandle retain(CUdeviceptr address) {
    CUmemGenericAllocationHandle handle = 0;
    MUST(cuMemRetainAllocationHandle(&handle, reinterpret_cast<void *>(address)));
    return handle;
}

}  // namespace

SCENARIO_NAMED(a_handle_stays_the_same_through_retain_release_and_two_mappings) {
    start();
    const CUmemGenericAllocationHandle handle = take_physical(4 * MiB);
    const CUdeviceptr first = reserve(8 * MiB), second = first + 4 * MiB;
    map(first, handle, 4 * MiB);
    map(second, handle, 4 * MiB);
    MUST(cuMemsetD32_v2(first, 0xabcd, MiB));
    EXPECT_EQ(word_at(second + 4 * MiB - 4), 0xabcdU);
    MUST(cuMemRelease(handle));
    EXPECT_EQ(cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(retain(first), handle);
    EXPECT_EQ(retain(second + 1), handle);
    CUmemAllocationProp properties{};
    MUST(cuMemGetAllocationPropertiesFromHandle(&properties, handle));
    EXPECT_EQ(properties.location.type, CU_MEM_LOCATION_TYPE_DEVICE);
    MUST(cuMemUnmap(first, 8 * MiB));
    MUST(cuMemRelease(handle));
    EXPECT_EQ(curb_sim_held(0), kContext + 4 * MiB);  // the second reference
    MUST(cuMemRelease(handle));
    EXPECT_EQ(curb_sim_held(0), kContext);
    EXPECT_EQ(shown_held(), kContext);
    // The program's references are curb's to count: the driver saw the call with a handle that had ended, and the last.
    EXPECT_EQ(curb_sim_calls("cuMemRelease"), 2);
}

SCENARIO_NAMED(each_call_that_takes_a_handle_reaches_the_driver_with_its_own) {
    start();
    CUmemAllocationProp properties = families::on_device(0);
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUmemGenericAllocationHandle handle = 0, again = 0;
    MUST(cuMemCreate(&handle, 2 * MiB, &properties, 0));
    int file = -1;
    MUST(cuMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    MUST(cuMemImportFromShareableHandle(&again, reinterpret_cast<void *>(static_cast<std::intptr_t>(file)),
                                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(file);
    EXPECT_EQ(again, handle);
    MUST(cuMemRelease(again));
    // This machine has no multicast objects: the driver has looked at the handle first.
    EXPECT_EQ(cuMulticastBindMem(0, 0, handle, 0, 2 * MiB, 0), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(cuMulticastBindMem(0, 0, 0x1234, 0, 2 * MiB, 0), CUDA_ERROR_INVALID_VALUE);
    const CUDA_ARRAY3D_DESCRIPTOR descriptor{4096, 4096, 0, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_SPARSE};
    CUarrayMapInfo info{};
    MUST(cuArray3DCreate_v2(&info.resource.array, &descriptor));
    info.resourceType = CU_RESOURCE_TYPE_ARRAY;
    info.memOperationType = CU_MEM_OPERATION_TYPE_MAP;
    info.memHandle.memHandle = handle;
    info.deviceBitMask = 1;
    MUST(cuMemMapArrayAsync(&info, 1, nullptr));
    EXPECT_EQ(info.memHandle.memHandle, handle);  // the program's list is as it was
    MUST(cuMemRelease(handle));
    EXPECT_EQ(curb_sim_held(0), kContext + 2 * MiB);  // the array has it
    MUST(cuArrayDestroy(info.resource.array));
    EXPECT_EQ(curb_sim_held(0), kContext);
}

SCENARIO_NAMED(threads_that_map_and_release_the_same_memory_leave_nothing) {
    start();
    in_threads(8, [](unsigned) {
        const CUdeviceptr at = reserve(2 * MiB);
        for (int i = 0; i < 200; ++i) {
            const CUmemGenericAllocationHandle handle = take_physical(2 * MiB);
            map(at, handle, 2 * MiB);
            MUST(cuMemRelease(handle));
            EXPECT_EQ(retain(at), handle);
            MUST(cuMemUnmap(at, 2 * MiB));
            MUST(cuMemRelease(handle));
        }
    });
    EXPECT_EQ(curb_sim_held(0), kContext);
    EXPECT_EQ(shown_held(), kContext);
}

// ---- blocks ----

namespace {

// How many blocks curb has made: only these have a handle.
std::uint64_t handles_made() { return curb_sim_calls("cuMemCreate"); }

constexpr std::uint64_t kOdd = 3 * MiB + 5;  // takes two granules

}  // namespace

SCENARIO_NAMED(a_block_is_charged_refused_and_freed_as_memory_of_the_driver) {
    start();
    const CUdeviceptr odd = take(kOdd), small = take(4096);
    EXPECT_EQ(handles_made(), 1);
    EXPECT_EQ(shown_held(), kContext + 6 * MiB);
    EXPECT_EQ(curb_sim_held(0), kContext + 6 * MiB);
    std::size_t pitch = 0;
    CUdeviceptr rows = 0, more = 0;
    MUST(cuMemAllocPitch_v2(&rows, &pitch, 1025, 4096, 4));
    EXPECT_EQ(pitch, 1536);
    EXPECT_EQ(handles_made(), 2);
    EXPECT_EQ(shown_held(), curb_sim_held(0));
    EXPECT_EQ(cuMemAlloc_v2(&more, 1 * GiB), CUDA_ERROR_OUT_OF_MEMORY);
    fill([&] { return cuMemAlloc_v2(&more, 32 * MiB); });
    EXPECT_EQ(shown_held(), curb_sim_held(0));
    EXPECT(curb_sim_high(0) <= kCap);
    MUST(cuMemFree_v2(more));
    for (const CUdeviceptr one : {odd, rows, small}) MUST(cuMemFree_v2(one));
    EXPECT_EQ(cuMemFree_v2(odd), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(shown_held(), curb_sim_held(0));
    EXPECT_EQ(curb_sim_calls("cuMemAddressFree"), 3);
}

SCENARIO_NAMED(blocks_end_with_their_context) {
    start();
    const CUdeviceptr first = take(kOdd);
    const CUcontext second = make_context();
    CUcontext owner = nullptr;
    const CUdeviceptr other = take(64 * MiB);
    MUST(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, other));
    EXPECT(owner == second);
    MUST(cuCtxDestroy_v2(second));
    EXPECT_EQ(curb_sim_held(0), kContext + 4 * MiB);
    EXPECT_EQ(cuMemFree_v2(other), CUDA_ERROR_INVALID_VALUE);
    MUST(cuDevicePrimaryCtxReset_v2(0));
    EXPECT_EQ(curb_sim_held(0), 0);
    start();
    EXPECT_EQ(cuMemFree_v2(first), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(shown_held(), kContext);
}

SCENARIO_NAMED(a_free_of_a_block_waits_for_the_work_of_its_context) {
    start();
    const CUdeviceptr block = take(kOdd), in_stream = take(kOdd);
    const CUstream stream = make_stream();
    std::atomic<bool> may_end{false}, has_ended{false};
    struct Flags {
        std::atomic<bool> &may_end, &has_ended;
    } flags{may_end, has_ended};
    MUST(cuLaunchHostFunc(
        stream,
        [](void *with) {
            const auto &two = *static_cast<Flags *>(with);
            while (!two.may_end) std::this_thread::yield();
            two.has_ended = true;
        },
        &flags));
    std::jthread opens([&] {
        within(std::chrono::seconds(10), [&] { return curb_sim_calls("cuCtxSynchronize") != 0; }), may_end = true;
    });
    MUST(cuMemFree_v2(block));
    EXPECT(has_ended);
    MUST(cuMemFreeAsync(in_stream, stream));
    EXPECT_EQ(curb_sim_held(0), kContext);
}

SCENARIO_NAMED(a_block_is_refused_during_a_capture_as_the_driver_refuses) {
    start();
    const CUdeviceptr block = take(kOdd);
    const CUstream stream = make_stream();
    CUgraph graph = nullptr;
    CUdeviceptr more = 0;
    for (const auto mode : {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL}) {
        MUST(cuStreamBeginCapture_v2(stream, mode));
        EXPECT_EQ(cuMemAlloc_v2(&more, kOdd), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        EXPECT_EQ(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        MUST(cuStreamBeginCapture_v2(stream, mode));
        EXPECT_EQ(cuMemFree_v2(block), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        EXPECT_EQ(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    }
    const auto made = handles_made();
    MUST(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    MUST(cuMemAlloc_v2(&more, kOdd));
    EXPECT_EQ(handles_made(), made + 1);
    MUST(cuMemFree_v2(block));
    MUST(cuStreamEndCapture(stream, &graph));
    MUST(cuMemFree_v2(more));
    EXPECT_EQ(curb_sim_held(0), kContext);
}

SCENARIO_NAMED(a_free_of_a_block_in_a_stream_leaves_the_capture_of_another_alone) {
    start();
    const CUstream captured = make_stream(), other = make_stream();
    CUgraph graph = nullptr;
    for (const auto mode : {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL}) {
        const CUdeviceptr block = take(kOdd);
        MUST(cuStreamBeginCapture_v2(captured, mode));
        MUST(cuMemFreeAsync(block, other));
        MUST(cuStreamEndCapture(captured, &graph));
    }
    EXPECT_EQ(curb_sim_held(0), kContext);
}

SCENARIO_NAMED(a_query_behind_a_block_fails_and_writes_nothing) {
    start();
    const CUdeviceptr block = take(kOdd), behind = block + kOdd;
    CUdeviceptr address = 77;
    std::size_t bytes = 77;
    EXPECT_EQ(cuMemGetAddressRange_v2(&address, &bytes, behind), CUDA_ERROR_NOT_FOUND);
    EXPECT_EQ(address, 77U);
    EXPECT_EQ(bytes, 77U);
    unsigned long long flags = 77;
    const CUmemLocation here{CU_MEM_LOCATION_TYPE_DEVICE, 0};
    EXPECT_EQ(cuMemGetAccess(&flags, &here, behind), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(flags, 77U);
    const unsigned on = 1;
    EXPECT_EQ(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, behind), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMulticastBindAddr(1, 0, block, 2 * MiB, 0), CUDA_ERROR_INVALID_VALUE);
}

SCENARIO_NAMED(a_second_device_reaches_blocks_that_were_there_and_new_ones) {
    const CUcontext first = start();
    const CUdeviceptr before = take(kOdd);
    const auto set = curb_sim_calls("cuMemSetAccess");
    CUcontext second = nullptr;
    MUST(cuCtxCreate_v2(&second, 0, 1));
    EXPECT_EQ(curb_sim_calls("cuMemSetAccess"), set + 1);
    MUST(cuCtxEnablePeerAccess(first, 0));
    MUST(cuCtxSetCurrent(first));
    const CUdeviceptr after = take(kOdd);
    EXPECT_EQ(curb_sim_calls("cuMemSetAccess"), set + 4);  // its own device and the peer
    MUST(cuMemFree_v2(before));
    MUST(cuMemFree_v2(after));
}

SCENARIO_NAMED(kept_blocks_serve_again_and_go_back_to_the_device) {
    start();
    const CUdeviceptr block = take(kOdd);
    MUST(cuMemFree_v2(block));
    EXPECT_EQ(take(kOdd), block);
    MUST(cuMemFree_v2(block));
    EXPECT_EQ(handles_made(), 1);
    EXPECT_EQ(curb_sim_held(0), kContext + 4 * MiB);
    CUdeviceptr large = 0;
    fill([&] { return cuMemAlloc_v2(&large, 4 * MiB); });  // frees the kept block first
    EXPECT_EQ(curb_sim_calls("cuMemAddressFree"), 1);
    EXPECT_EQ(shown_held(), curb_sim_held(0));
}

SCENARIO_NAMED(where_virtual_memory_fails_the_driver_serves_the_request) {
    start();
    for (const char *call : {"cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess"}) {
        curb_sim_fail_next(call, CUDA_ERROR_NOT_SUPPORTED, 1);
        const CUdeviceptr block = take(kOdd);
        EXPECT_EQ(shown_held(), kContext + 4 * MiB);
        EXPECT_EQ(curb_sim_held(0), kContext + 4 * MiB);
        MUST(cuMemFree_v2(block));
        EXPECT_EQ(curb_sim_held(0), kContext);
    }
}

SCENARIO_NAMED(a_block_that_the_driver_does_not_free_stays_as_it_is) {
    start();
    for (const char *call : {"cuMemRelease", "cuMemUnmap"}) {
        const CUdeviceptr block = take(kOdd);
        MUST(cuMemsetD32_v2(block, 0xabcd, 1));
        curb_sim_fail_next(call, CUDA_ERROR_UNKNOWN, 1);
        EXPECT_EQ(cuMemFree_v2(block), CUDA_ERROR_UNKNOWN);
        EXPECT_EQ(shown_held(), kContext + 4 * MiB);
        EXPECT_EQ(word_at(block), 0xabcdU);
        MUST(cuMemFree_v2(block));
        EXPECT_EQ(curb_sim_held(0), kContext);
        EXPECT_EQ(shown_held(), kContext);
    }
}

SCENARIO_NAMED(a_fork_child_leaves_the_blocks_alone) {
    start();
    const CUdeviceptr block = take(kOdd);
    const pid_t child = fork();
    if (child == 0) {
        CUdeviceptr more = 0;
        const bool is_refused = cuMemAlloc_v2(&more, kOdd) != CUDA_SUCCESS && cuMemFree_v2(block) != CUDA_SUCCESS;
        _exit(is_refused ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    MUST(cuMemFree_v2(block));
    EXPECT_EQ(curb_sim_held(0), kContext);
}

SCENARIO_NAMED(large_requests_call_the_drivers_own_allocation) {
    start();
    MUST(cuMemFree_v2(take(64 * MiB)));
    EXPECT_EQ(handles_made(), 0);
}
