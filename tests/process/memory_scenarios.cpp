// Every family of device memory under a cap: what the driver's books say, what is refused, what comes back.

#include <unistd.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <memory>

#include "nvml_abi.h"
#include "scenario.hpp"
#include "sim.h"

using namespace scenario;
namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t kCap = 1 * GiB;  // set by shim_test.cpp for these scenarios

CUdeviceptr take(std::uint64_t bytes) {
    CUdeviceptr pointer = 0;
    MUST(cuMemAlloc_v2(&pointer, bytes));
    return pointer;
}

// Fills up by `allocate` until it is refused; returns how often it was served.
template <class Allocate>
int fill(Allocate allocate) {
    int served = 0;
    CUresult result = CUDA_SUCCESS;
    while ((result = allocate()) == CUDA_SUCCESS) {
        ++served;
        EXPECT(curb_sim_held(0) <= kCap);
        if (served > 100'000) break;
    }
    EXPECT_EQ(result, CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT(curb_sim_held(0) <= kCap);
    return served;
}

CUmemAllocationProp on_device(int device) {
    CUmemAllocationProp properties;
    std::memset(&properties, 0, sizeof properties);
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    return properties;
}

CUmemoryPool make_pool(CUmemLocationType where, int id) {
    CUmemPoolProps properties;
    std::memset(&properties, 0, sizeof properties);
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {where, id};
    CUmemoryPool pool = nullptr;
    MUST(cuMemPoolCreate(&pool, &properties));
    return pool;
}

// An array of single floats.
CUDA_ARRAY3D_DESCRIPTOR floats(std::size_t width, std::size_t height, std::size_t depth, unsigned flags) {
    return {width, height, depth, CU_AD_FORMAT_FLOAT, 1, flags};
}

// A graph that allocates `bytes` and leaves them to the program.
struct AllocatingGraph {
    explicit AllocatingGraph(std::uint64_t bytes, unsigned long long flags = 0) {
        CUDA_MEM_ALLOC_NODE_PARAMS parameters;
        std::memset(&parameters, 0, sizeof parameters);
        parameters.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
        parameters.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
        parameters.bytesize = bytes;
        CUgraphNode node = nullptr;
        MUST(cuGraphCreate(&graph, 0));
        MUST(cuGraphAddMemAllocNode(&node, graph, nullptr, 0, &parameters));
        block = parameters.dptr;
        MUST(cuGraphInstantiateWithFlags(&executable, graph, flags));
    }
    CUgraph graph = nullptr;
    CUgraphExec executable = nullptr;
    CUdeviceptr block = 0;
};

CUmodule load_module(const char *image) {
    CUmodule module = nullptr;
    MUST(cuModuleLoadData(&module, image));
    return module;
}

CUfunction kernel_of(CUmodule module, const char *name) {
    CUfunction function = nullptr;
    MUST(cuModuleGetFunction(&function, module, name));
    return function;
}

CUresult launch(CUfunction function) {
    return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
}

std::size_t stack_limit() {
    std::size_t limit = 0;
    MUST(cuCtxGetLimit(&limit, CU_LIMIT_STACK_SIZE));
    return limit;
}

void keep_everything(CUmemoryPool pool) {
    std::uint64_t threshold = ~0ULL;
    MUST(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
}

}  // namespace

SCENARIO_NAMED(plain_memory_stops_at_the_cap_and_comes_back) {
    start();
    std::vector<CUdeviceptr> blocks;
    const int served = fill([&] {
        CUdeviceptr pointer = 0;
        const CUresult result = cuMemAlloc_v2(&pointer, 64 * MiB);
        if (result == CUDA_SUCCESS) blocks.push_back(pointer);
        return result;
    });
    EXPECT_EQ(served, 5);  // (1024 - 128 - 518) / 64
    EXPECT_EQ(told_held(), curb_sim_held(0));
    for (const CUdeviceptr block : blocks) MUST(cuMemFree_v2(block));
    EXPECT_EQ(curb_sim_held(0), kContext);
    EXPECT_EQ(told_held(), kContext);
    MUST(cuMemFree_v2(take(256 * MiB)));
}

SCENARIO_NAMED(sizes_that_do_not_fill_their_granule_are_charged_as_the_driver_backs_them) {
    start();
    for (const std::uint64_t bytes :
         {std::uint64_t{1}, 4 * KiB, 1 * MiB, 1 * MiB + 1, 2 * MiB, 2 * MiB + 1, 3 * MiB, 33 * MiB + 5}) {
        const CUdeviceptr first = take(bytes), second = take(bytes);
        EXPECT_EQ(told_held(), curb_sim_held(0));
        MUST(cuMemFree_v2(first));
        EXPECT_EQ(told_held(), curb_sim_held(0));
        MUST(cuMemFree_v2(second));
        EXPECT_EQ(told_held(), kContext);
    }
    std::vector<CUdeviceptr> small;
    for (int i = 0; i < 10'000; ++i) small.push_back(take(4 * KiB));
    EXPECT_EQ(curb_sim_held(0), kContext + 40 * MiB);
    EXPECT_EQ(told_held(), curb_sim_held(0));
    for (std::size_t i = 0; i < small.size(); ++i)
        if (i % 512 != 0) MUST(cuMemFree_v2(small[i]));
    EXPECT_EQ(told_held(), curb_sim_held(0));  // one block keeps its granule
    for (std::size_t i = 0; i < small.size(); i += 512) MUST(cuMemFree_v2(small[i]));
    EXPECT_EQ(told_held(), kContext);
}

SCENARIO_NAMED(odd_sizes_stop_at_the_cap) {
    start();
    const int served = fill([&] {
        CUdeviceptr pointer = 0;
        return cuMemAlloc_v2(&pointer, 1 * MiB + 1);
    });
    EXPECT_EQ(served, 189);  // (1024 - 128 - 518) / 2
}

SCENARIO_NAMED(pitched_memory_is_charged_by_the_pitch) {
    start();
    CUdeviceptr pointer = 0;
    std::size_t pitch = 0;
    MUST(cuMemAllocPitch_v2(&pointer, &pitch, 1000, 5000, 4));
    EXPECT(pitch >= 1000);
    EXPECT_EQ(told_held(), curb_sim_held(0));
    MUST(cuMemFree_v2(pointer));
    EXPECT_EQ(told_held(), kContext);
    fill([&] { return cuMemAllocPitch_v2(&pointer, &pitch, 60'000, 1000, 4); });
}

SCENARIO_NAMED(managed_memory_is_charged_in_full) {
    start();
    CUdeviceptr pointer = 0;
    MUST(cuMemAllocManaged(&pointer, 256 * MiB, CU_MEM_ATTACH_GLOBAL));
    EXPECT_EQ(told_held(), kContext + 256 * MiB);
    CUdeviceptr second = 0;
    EXPECT_EQ(cuMemAllocManaged(&second, 512 * MiB, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_OUT_OF_MEMORY);
    MUST(cuMemFree_v2(pointer));
    EXPECT_EQ(told_held(), kContext);
}

SCENARIO_NAMED(stream_ordered_memory_stops_at_the_cap) {
    start();
    CUstream stream = nullptr;
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CUmemoryPool pool = nullptr;
    MUST(cuDeviceGetMemPool(&pool, 0));
    keep_everything(pool);
    std::vector<CUdeviceptr> blocks;
    fill([&] {
        CUdeviceptr pointer = 0;
        const CUresult result = cuMemAllocAsync(&pointer, 32 * MiB, stream);
        if (result == CUDA_SUCCESS) blocks.push_back(pointer);
        return result;
    });
    EXPECT_EQ(blocks.size(), 11U);  // (1024 - 128 - 518) / 32
    EXPECT_EQ(told_held(), curb_sim_held(0));
    // Freed, but kept by the pool: still held, and served again without growth.
    for (const CUdeviceptr block : blocks) MUST(cuMemFreeAsync(block, stream));
    EXPECT(curb_sim_held(0) > 800 * MiB);
    EXPECT_EQ(told_held(), curb_sim_held(0));
    CUdeviceptr again = 0;
    MUST(cuMemAllocAsync(&again, 200 * MiB, stream));
    EXPECT(curb_sim_held(0) <= kCap);
    MUST(cuMemFreeAsync(again, stream));
    // Trimmed before anything is refused.
    MUST(cuStreamSynchronize(stream));
    const CUdeviceptr plain = take(352 * MiB);
    EXPECT_EQ(curb_sim_held(0), kContext + 352 * MiB);
    EXPECT_EQ(told_held(), curb_sim_held(0));
    MUST(cuMemFree_v2(plain));
}

SCENARIO_NAMED(frees_that_the_host_has_not_seen_complete_are_waited_for_before_a_refusal) {
    start();
    CUstream stream = nullptr;
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CUmemoryPool pool = nullptr;
    MUST(cuDeviceGetMemPool(&pool, 0));
    keep_everything(pool);
    CUdeviceptr block = 0;
    MUST(cuMemAllocAsync(&block, 352 * MiB, stream));
    MUST(cuMemFreeAsync(block, stream));
    MUST(cuMemFree_v2(take(352 * MiB)));
    EXPECT_EQ(curb_sim_held(0), kContext);
}

SCENARIO_NAMED(explicit_pools_are_charged_where_they_live) {
    start();
    CUstream stream = nullptr;
    MUST(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
    const CUmemoryPool pool = make_pool(CU_MEM_LOCATION_TYPE_DEVICE, 0);
    CUdeviceptr block = 0;
    MUST(cuMemAllocFromPoolAsync(&block, 70 * MiB, pool, stream));
    EXPECT_EQ(told_held(), kContext + 96 * MiB);
    EXPECT_EQ(told_held(), curb_sim_held(0));
    CUdeviceptr more = 0;
    fill([&] { return cuMemAllocFromPoolAsync(&more, 70 * MiB, pool, stream); });
    EXPECT_EQ(told_held(), curb_sim_held(0));
    // Memory of the host's is nobody's device memory.
    const std::uint64_t before = curb_sim_held(0);
    const CUmemoryPool host = make_pool(CU_MEM_LOCATION_TYPE_HOST, 0);
    MUST(cuMemAllocFromPoolAsync(&more, 64 * MiB, host, stream));
    EXPECT_EQ(curb_sim_held(0), before);
    EXPECT_EQ(told_held(), before);
}

SCENARIO_NAMED(a_destroyed_pool_is_held_until_its_last_allocation_is_freed) {
    start();
    CUstream stream = nullptr;
    MUST(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
    const CUmemoryPool pool = make_pool(CU_MEM_LOCATION_TYPE_DEVICE, 0);
    CUdeviceptr block = 0;
    MUST(cuMemAllocFromPoolAsync(&block, 64 * MiB, pool, stream));
    MUST(cuMemPoolDestroy(pool));
    EXPECT_EQ(told_held(64 * MiB), curb_sim_held(0));  // it is what the device says, and no pool's
    EXPECT_EQ(curb_sim_held(0), kContext + 64 * MiB);
    MUST(cuMemFreeAsync(block, stream));
    MUST(cuStreamSynchronize(stream));
    // Nothing told curb that this memory is back; the next request is what finds out.
    take(352 * MiB);
    EXPECT_EQ(told_held(), curb_sim_held(0));
}

SCENARIO_NAMED(pool_memory_that_came_back_unseen_is_not_lost_to_the_cap) {
    start();
    CUstream stream = nullptr;
    MUST(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
    CUdeviceptr block = 0, second = 0;
    MUST(cuMemAllocAsync(&block, 256 * MiB, stream));
    MUST(cuMemFreeAsync(block, stream));
    MUST(cuStreamSynchronize(stream));  // the pool's threshold is 0: its memory is back, behind our back
    EXPECT_EQ(curb_sim_held(0), kContext);
    // Curb notices by looking again; what it then says is all that is held, neither more nor less.
    std::uint64_t told = 0;
    EXPECT(within(std::chrono::seconds(1), [&] { return (told = told_held()) <= kContext; }));
    EXPECT_EQ(told, kContext);
    MUST(cuMemAlloc_v2(&block, 352 * MiB));
    EXPECT_EQ(cuMemAlloc_v2(&second, 32 * MiB), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(told_held(), curb_sim_held(0));
}

SCENARIO_NAMED(mapped_memory_is_held_by_references_and_mappings) {
    start();
    const CUmemAllocationProp properties = on_device(0);
    CUmemGenericAllocationHandle first = 0, second = 0, retained = 0;
    MUST(cuMemCreate(&first, 64 * MiB, &properties, 0));
    MUST(cuMemCreate(&second, 64 * MiB, &properties, 0));
    EXPECT_EQ(told_held(), kContext + 128 * MiB);
    CUdeviceptr address = 0;
    MUST(cuMemAddressReserve(&address, 4 * GiB, 0, 0, 0));  // addresses are not memory
    EXPECT_EQ(told_held(), curb_sim_held(0));
    MUST(cuMemMap(address, 64 * MiB, 0, first, 0));
    MUST(cuMemMap(address + 64 * MiB, 64 * MiB, 0, second, 0));
    // Released right after mapping: the mapping keeps the memory.
    MUST(cuMemRelease(first));
    MUST(cuMemRelease(second));
    EXPECT_EQ(told_held(), kContext + 128 * MiB);
    EXPECT_EQ(told_held(), curb_sim_held(0));
    MUST(cuMemRetainAllocationHandle(&retained, reinterpret_cast<void *>(address)));
    MUST(cuMemUnmap(address, 128 * MiB));         // one call, two mappings
    EXPECT_EQ(told_held(), kContext + 64 * MiB);  // the retained reference
    EXPECT_EQ(told_held(), curb_sim_held(0));
    MUST(cuMemRelease(retained));
    EXPECT_EQ(told_held(), kContext);
    EXPECT_EQ(curb_sim_held(0), kContext);
    fill([&] { return cuMemCreate(&first, 20 * MiB, &properties, 0); });
}

SCENARIO_NAMED(host_memory_of_the_mapping_calls_is_not_charged) {
    start();
    CUmemAllocationProp properties = on_device(0);
    properties.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
    CUmemGenericAllocationHandle handle = 0;
    MUST(cuMemCreate(&handle, 2 * GiB, &properties, 0));
    EXPECT_EQ(told_held(), kContext);
    MUST(cuMemRelease(handle));
}

SCENARIO_NAMED(imported_memory_is_not_charged_twice) {
    start();
    CUmemAllocationProp properties = on_device(0);
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUmemGenericAllocationHandle handle = 0, imported = 0;
    MUST(cuMemCreate(&handle, 64 * MiB, &properties, 0));
    int fd = -1;
    MUST(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    MUST(cuMemImportFromShareableHandle(&imported, reinterpret_cast<void *>(static_cast<std::intptr_t>(fd)),
                                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    EXPECT_EQ(told_held(), kContext + 64 * MiB);
    MUST(cuMemRelease(imported));
    EXPECT_EQ(told_held(), kContext + 64 * MiB);
    MUST(cuMemRelease(handle));
    EXPECT_EQ(curb_sim_held(0), kContext);
}

SCENARIO_NAMED(an_imported_pool_is_not_charged) {
    start();
    CUmemPoolProps properties;
    std::memset(&properties, 0, sizeof properties);
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUmemoryPool own = nullptr, imported = nullptr;
    MUST(cuMemPoolCreate(&own, &properties));
    CUdeviceptr block = 0, same = 0;
    MUST(cuMemAllocFromPoolAsync(&block, 64 * MiB, own, nullptr));
    MUST(cuCtxSynchronize());
    int fd = -1;
    CUmemPoolPtrExportData exported;
    MUST(cuMemPoolExportToShareableHandle(&fd, own, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    MUST(cuMemPoolExportPointer(&exported, block));
    MUST(cuMemPoolImportFromShareableHandle(&imported, reinterpret_cast<void *>(static_cast<std::intptr_t>(fd)),
                                            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    MUST(cuMemPoolImportPointer(&same, imported, &exported));
    EXPECT_EQ(told_held(), kContext + 64 * MiB);
    EXPECT_EQ(told_held(), curb_sim_held(0));
    MUST(cuMemFreeAsync(same, nullptr));
    MUST(cuMemFreeAsync(block, nullptr));
    MUST(cuCtxSynchronize());
    std::uint64_t reserved = 1;  // a pool tells the truth about itself
    MUST(cuMemPoolGetAttribute(own, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved));
    EXPECT_EQ(reserved, 0U);
    EXPECT_EQ(curb_sim_held(0), kContext);
}

SCENARIO_NAMED(contexts_are_measured_and_take_their_memory_with_them) {
    CUcontext primary = start();
    EXPECT_EQ(told_held(), kContext);
    take(64 * MiB);
    CUcontext own = nullptr;
    EXPECT_EQ(told_held(), kContext + 64 * MiB);
    MUST(cuDevicePrimaryCtxReset_v2(0));
    EXPECT_EQ(curb_sim_held(0), 0U);
    MUST(cuCtxCreate_v2(&own, 0, 0));
    EXPECT_EQ(told_held(), curb_sim_held(0));
    take(64 * MiB);
    EXPECT_EQ(told_held(), kContext + 64 * MiB);
    MUST(cuCtxDestroy_v2(own));
    EXPECT_EQ(curb_sim_held(0), 0U);
    MUST(cuDevicePrimaryCtxRetain(&primary, 0));
    MUST(cuCtxSetCurrent(primary));
    EXPECT_EQ(told_held(), kContext);
    take(64 * MiB);
    // The last release frees; the memory is not charged to the next life of the context.
    MUST(cuDevicePrimaryCtxRelease_v2(0));
    MUST(cuDevicePrimaryCtxRetain(&primary, 0));
    MUST(cuCtxSetCurrent(primary));
    EXPECT_EQ(told_held(), curb_sim_held(0));
    EXPECT_EQ(told_held(), kContext);
}

SCENARIO_NAMED(arrays_are_charged_as_the_driver_backs_them) {
    start();
    for (const CUDA_ARRAY3D_DESCRIPTOR &description :
         {floats(1024, 1024, 0, 0), floats(1000, 1000, 0, 0), floats(131072, 0, 0, 0), floats(500, 300, 100, 0),
          floats(300, 300, 17, 0), floats(1000, 1000, 6, CUDA_ARRAY3D_LAYERED)}) {
        CUarray array = nullptr;
        MUST(cuArray3DCreate_v2(&array, &description));
        EXPECT(curb_sim_held(0) > kContext);
        EXPECT_EQ(told_held(), curb_sim_held(0));
        MUST(cuArrayDestroy(array));
        EXPECT_EQ(told_held(), kContext);
        CUmipmappedArray mipmap = nullptr;
        MUST(cuMipmappedArrayCreate(&mipmap, &description, 4));
        EXPECT_EQ(told_held(), curb_sim_held(0));
        MUST(cuMipmappedArrayDestroy(mipmap));
        EXPECT_EQ(told_held(), kContext);
    }
    CUarray array = nullptr;
    const CUDA_ARRAY_DESCRIPTOR flat{4096, 4096, CU_AD_FORMAT_FLOAT, 1};
    EXPECT_EQ(fill([&] { return cuArrayCreate_v2(&array, &flat); }), 5);  // (1024 - 128 - 518) / 64
    EXPECT_EQ(told_held(), curb_sim_held(0));
}

SCENARIO_NAMED(small_arrays_share_granules_and_stop_at_the_cap) {
    start();
    const CUDA_ARRAY3D_DESCRIPTOR small = floats(64, 64, 0, 0);
    constexpr std::uint64_t kLeast = 64 * 64 * 4;
    CUarray array = nullptr;
    for (int i = 0; i < 1000; ++i) MUST(cuArray3DCreate_v2(&array, &small));
    const std::uint64_t held = curb_sim_held(0);
    EXPECT(held < kContext + 32 * MiB);  // not a granule each
    EXPECT_EQ(told_held(held - kContext - 1000 * kLeast), held);
    const CUDA_ARRAY3D_DESCRIPTOR larger = floats(256, 256, 0, 0);
    EXPECT(fill([&] { return cuArray3DCreate_v2(&array, &larger); }) > 1200);  // 256 KiB each
}

SCENARIO_NAMED(arrays_that_are_mapped_later_are_not_charged) {
    start();
    for (const unsigned flag : {CUDA_ARRAY3D_SPARSE, CUDA_ARRAY3D_DEFERRED_MAPPING}) {
        const CUDA_ARRAY3D_DESCRIPTOR description = floats(32768, 16384, 0, flag);  // 2 GiB
        CUarray array = nullptr;
        MUST(cuArray3DCreate_v2(&array, &description));
        EXPECT_EQ(told_held(), curb_sim_held(0));
        EXPECT_EQ(told_held(), kContext);
        MUST(cuArrayDestroy(array));
    }
}

SCENARIO_NAMED(graph_memory_stops_at_the_cap_and_comes_back) {
    start();
    CUstream stream = nullptr;
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    std::vector<AllocatingGraph> graphs;
    const int served = fill([&] {
        graphs.emplace_back(64 * MiB);
        const CUresult result = cuGraphLaunch(graphs.back().executable, stream);
        EXPECT_EQ(told_held(), curb_sim_held(0));
        return result;
    });
    EXPECT_EQ(served, 5);  // (1024 - 128 - 518) / 64
    // The one that was refused was not launched: it can be as soon as another has gone, and its memory was trimmed.
    MUST(cuMemFree_v2(graphs.front().block));
    MUST(cuGraphLaunch(graphs.back().executable, stream));
    EXPECT(curb_sim_held(0) <= kCap);
    for (std::size_t i = 1; i < graphs.size(); ++i) MUST(cuMemFreeAsync(graphs[i].block, stream));
    MUST(cuStreamSynchronize(stream));
    for (const AllocatingGraph &one : graphs) MUST(cuGraphExecDestroy(one.executable));
    EXPECT_EQ(told_held(), curb_sim_held(0));  // still reserved
    EXPECT(curb_sim_held(0) > kContext);
    MUST(cuMemFree_v2(take(352 * MiB)));  // trimmed before anything is refused
    EXPECT_EQ(curb_sim_held(0), kContext);
    EXPECT_EQ(told_held(), kContext);
}

SCENARIO_NAMED(a_graph_that_keeps_its_memory_is_launched_again_at_the_cap) {
    start();
    const AllocatingGraph graph(256 * MiB, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
    MUST(cuGraphLaunch(graph.executable, nullptr));
    MUST(cuCtxSynchronize());
    // The refusal trims the memory of graphs, but not what is in use.
    CUdeviceptr pointer = 0;
    EXPECT_EQ(cuMemAlloc_v2(&pointer, 256 * MiB), CUDA_ERROR_OUT_OF_MEMORY);
    MUST(cuMemAlloc_v2(&pointer, 64 * MiB));
    for (int i = 0; i < 3; ++i) MUST(cuGraphLaunch(graph.executable, nullptr));
    EXPECT_EQ(told_held(), kContext + 320 * MiB);
    EXPECT_EQ(told_held(), curb_sim_held(0));
    // Freed by the program and trimmed, it has to be asked for again.
    MUST(cuMemFree_v2(graph.block));
    MUST(cuDeviceGraphMemTrim(0));
    const CUdeviceptr other = take(300 * MiB);
    EXPECT_EQ(cuGraphLaunch(graph.executable, nullptr), CUDA_ERROR_OUT_OF_MEMORY);
    MUST(cuMemFree_v2(other));
    MUST(cuGraphLaunch(graph.executable, nullptr));
    EXPECT_EQ(told_held(), curb_sim_held(0));
}

SCENARIO_NAMED(a_captured_graph_is_charged_when_it_is_launched) {
    start();
    CUstream stream = nullptr;
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    const auto captured = [&](std::uint64_t bytes) {
        CUdeviceptr block = 0;
        CUgraph graph = nullptr;
        CUgraphExec executable = nullptr;
        MUST(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
        MUST(cuMemAllocAsync(&block, bytes, stream));
        MUST(cuMemFreeAsync(block, stream));
        MUST(cuStreamEndCapture(stream, &graph));
        MUST(cuGraphInstantiateWithFlags(&executable, graph, 0));
        return executable;
    };
    const CUgraphExec fits = captured(256 * MiB), does_not = captured(512 * MiB);
    EXPECT_EQ(curb_sim_held(0), kContext);
    EXPECT_EQ(cuGraphUpload(does_not, stream), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(cuGraphLaunch(does_not, stream), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(curb_sim_held(0), kContext);
    MUST(cuGraphUpload(fits, stream));
    EXPECT_EQ(told_held(), kContext + 256 * MiB);
    for (int i = 0; i < 3; ++i) MUST(cuGraphLaunch(fits, stream));
    MUST(cuDeviceGraphMemTrim(0));
    EXPECT_EQ(told_held(), curb_sim_held(0));
    // After a trim a launch takes the memory anew, so it is asked again.
    const CUdeviceptr block = take(350 * MiB);
    EXPECT_EQ(cuGraphLaunch(fits, stream), CUDA_ERROR_OUT_OF_MEMORY);
    MUST(cuMemFree_v2(block));
    MUST(cuGraphLaunch(fits, stream));
    EXPECT_EQ(told_held(), curb_sim_held(0));
}

SCENARIO_NAMED(a_stack_is_charged_for_every_resident_thread) {
    start();
    MUST(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 2048));
    EXPECT_EQ(curb_sim_held(0), kContext + 264 * MiB);
    EXPECT_EQ(told_held(), curb_sim_held(0));
    EXPECT_EQ(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 64 * KiB), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, ~std::size_t{0}), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(stack_limit(), 2048U);
    EXPECT_EQ(told_held(), curb_sim_held(0));
    MUST(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1024));
    EXPECT_EQ(told_held(), kContext);
    // Below the limit of the beginning a part of the context itself comes back.
    MUST(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 512));
    EXPECT_EQ(curb_sim_held(0), kContext - 132 * MiB);
    EXPECT_EQ(told_held(), curb_sim_held(0));
    const CUdeviceptr block = take(500 * MiB);
    EXPECT_EQ(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1024), CUDA_ERROR_OUT_OF_MEMORY);
    MUST(cuMemFree_v2(block));
    MUST(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1536));
    EXPECT_EQ(told_held(), curb_sim_held(0));
    // A context's stack goes with it.
    MUST(cuDevicePrimaryCtxReset_v2(0));
    CUcontext own = nullptr;
    MUST(cuCtxCreate_v2(&own, 0, 0));
    MUST(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 2048));
    EXPECT_EQ(told_held(), curb_sim_held(0));
    MUST(cuCtxDestroy_v2(own));
    MUST(cuCtxCreate_v2(&own, 0, 0));
    EXPECT_EQ(told_held(), kContext);
    EXPECT_EQ(curb_sim_held(0), kContext);
}

SCENARIO_NAMED(local_memory_of_a_kernel_is_charged_at_its_launch) {
    start();
    const CUmodule module =
        load_module("curb-sim-module\nkernel small\nkernel some local=2048\nkernel much local=65536\n");
    const CUfunction small = kernel_of(module, "small"), some = kernel_of(module, "some"),
                     much = kernel_of(module, "much");
    const std::uint64_t code = curb_sim_held(0) - kContext;
    MUST(launch(small));
    EXPECT_EQ(launch(much), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(curb_sim_held(0), kContext + code);
    MUST(launch(some));
    EXPECT_EQ(curb_sim_held(0), kContext + code + 264 * MiB);
    EXPECT_EQ(told_held(code), curb_sim_held(0));
    EXPECT_EQ(launch(much), CUDA_ERROR_OUT_OF_MEMORY);
    // Given back, it is taken again by the next launch, and that is asked for again.
    MUST(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1024));
    const CUdeviceptr block = take(300 * MiB);
    EXPECT_EQ(launch(some), CUDA_ERROR_OUT_OF_MEMORY);
    MUST(launch(small));
    MUST(cuMemFree_v2(block));
    MUST(launch(some));
    EXPECT_EQ(told_held(code), curb_sim_held(0));
}

SCENARIO_NAMED(a_heap_that_would_not_fit_is_refused_and_room_is_kept_for_one_that_does) {
    start();
    EXPECT_EQ(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 2 * GiB), CUDA_ERROR_OUT_OF_MEMORY);
    MUST(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 108 * MiB));
    const int served = fill([&] {
        CUdeviceptr pointer = 0;
        return cuMemAlloc_v2(&pointer, 2 * MiB);
    });
    EXPECT_EQ(served, (1024 - 518 - 128 - 100) / 2);
    MUST(launch(kernel_of(load_module("curb-sim-module\nkernel alloc malloc\n"), "alloc")));
    EXPECT(curb_sim_held(0) > 900 * MiB);
    EXPECT(curb_sim_held(0) <= kCap);
}

SCENARIO_NAMED(a_context_that_would_not_fit_is_refused) {
    const CUcontext primary = start();
    CUcontext second = nullptr;
    EXPECT_EQ(cuCtxCreate_v2(&second, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
    CUcontext current = nullptr;
    MUST(cuCtxGetCurrent(&current));
    EXPECT(current == primary);
    EXPECT_EQ(told_held(), kContext);
    MUST(cuMemFree_v2(take(352 * MiB)));
}

SCENARIO_NAMED(a_module_that_would_not_fit_is_unloaded_again_and_refused) {
    start();
    const char image[] = "curb-sim-module global=256MiB\nkernel k\n";
    const CUmodule module = load_module(image);
    const std::uint64_t held = curb_sim_held(0);
    EXPECT(held >= kContext + 256 * MiB);
    CUmodule second = nullptr;
    EXPECT_EQ(cuModuleLoadData(&second, image), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT(second == nullptr);
    EXPECT_EQ(curb_sim_held(0), held);
    EXPECT_EQ(told_held(held - kContext), held);
    MUST(cuModuleUnload(module));
    EXPECT_EQ(told_held(), kContext);
}

SCENARIO_NAMED(memory_of_a_green_context_goes_with_the_primary_one) {
    start();
    CUdevResource all, some;
    CUdevResourceDesc resources = nullptr;
    CUgreenCtx green = nullptr;
    CUcontext context = nullptr;
    unsigned groups = 1;
    MUST(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM));
    MUST(cuDevSmResourceSplitByCount(&some, &groups, &all, nullptr, 0, 16));
    MUST(cuDevResourceGenerateDesc(&resources, &some, 1));
    MUST(cuGreenCtxCreate(&green, resources, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    MUST(cuCtxFromGreenCtx(&context, green));
    const std::uint64_t code = curb_sim_held(0) - kContext;
    EXPECT_EQ(told_held(code), curb_sim_held(0));
    MUST(cuCtxPushCurrent_v2(context));
    const CUdeviceptr freed = take(64 * MiB);
    take(64 * MiB);
    MUST(cuCtxPopCurrent_v2(&context));
    MUST(cuGreenCtxDestroy(green));
    EXPECT_EQ(told_held(code), kContext + code + 128 * MiB);
    MUST(cuMemFree_v2(freed));
    EXPECT_EQ(told_held(code), curb_sim_held(0));
    MUST(cuDevicePrimaryCtxRelease_v2(0));
    EXPECT_EQ(curb_sim_held(0), 0U);
    start();
    EXPECT_EQ(told_held(), kContext);
}

SCENARIO_NAMED(nvml_tells_the_same_as_cuda) {
    start();
    take(64 * MiB);
    nvmlDevice_t device = nullptr;
    EXPECT_EQ(nvmlInit_v2(), NVML_SUCCESS);
    EXPECT_EQ(nvmlDeviceGetHandleByIndex_v2(0, &device), NVML_SUCCESS);
    std::size_t free_bytes = 0, total = 0;
    MUST(cuMemGetInfo_v2(&free_bytes, &total));
    nvmlMemory_t first{};
    EXPECT_EQ(nvmlDeviceGetMemoryInfo(device, &first), NVML_SUCCESS);
    EXPECT_EQ(first.total, total);
    EXPECT_EQ(first.free, free_bytes);
    EXPECT_EQ(first.used, total - free_bytes);
    nvmlMemory_v2_t second{};
    second.version = sizeof second | 2U << 24;
    EXPECT_EQ(nvmlDeviceGetMemoryInfo_v2(device, &second), NVML_SUCCESS);
    EXPECT_EQ(second.total, total);
    EXPECT_EQ(second.free, free_bytes);
    EXPECT_EQ(second.used + second.free + second.reserved, total);
    EXPECT_EQ(nvmlDeviceGetMemoryInfo(device, nullptr), NVML_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(nvmlShutdown(), NVML_SUCCESS);
}

SCENARIO_NAMED(the_device_itself_is_reported_where_the_policy_says_so) {  // cap: 1 GiB, report: device
    start();
    std::size_t free_bytes = 0, total = 0;
    MUST(cuMemGetInfo_v2(&free_bytes, &total));
    EXPECT_EQ(total, 80 * GiB);
    EXPECT(free_bytes > 70 * GiB);
    MUST(cuDeviceTotalMem_v2(&total, 0));
    EXPECT_EQ(total, 80 * GiB);
    CUdeviceptr pointer = 0;
    EXPECT_EQ(cuMemAlloc_v2(&pointer, 2 * GiB), CUDA_ERROR_OUT_OF_MEMORY);  // the cap holds all the same
}

SCENARIO_NAMED(code_that_the_driver_loads_is_counted) {
    start();
    CUmodule module = nullptr;
    const char image[64] = "not a real module";
    MUST(cuModuleLoadData(&module, image));
    EXPECT(curb_sim_held(0) > kContext);
    EXPECT(within(std::chrono::seconds(2), [] { return told_held(2 * MiB) == curb_sim_held(0); }));
    fill([&] {
        CUdeviceptr pointer = 0;
        return cuMemAlloc_v2(&pointer, 2 * MiB);
    });
    EXPECT_EQ(curb_sim_held(0), kCap - kept_for_driver(kCap, 2 * MiB));  // what is kept for more code
}

SCENARIO_NAMED(programs_see_the_capped_device) {
    start();
    std::size_t total = 0;
    MUST(cuDeviceTotalMem_v2(&total, 0));
    EXPECT_EQ(total, kCap);
    EXPECT_EQ(told_total(), kCap);
    EXPECT_EQ(told_held(), kContext);
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
    EXPECT_EQ(told_held(), kContext);
    EXPECT_EQ(curb_sim_held(0), kContext);
}

SCENARIO_NAMED(a_cap_smaller_than_a_context_refuses_the_context) {  // cap: 256 MiB
    CUcontext context = nullptr;
    MUST(cuInit(0));
    EXPECT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(cuCtxCreate_v2(&context, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT(context == nullptr);
    EXPECT_EQ(curb_sim_held(0), 0U);
    std::size_t total = 0;
    MUST(cuDeviceTotalMem_v2(&total, 0));
    EXPECT_EQ(total, 256 * MiB);
}

SCENARIO_NAMED(without_a_policy_nothing_is_changed) {
    start();
    std::size_t free_bytes = 0, total = 0;
    MUST(cuMemGetInfo_v2(&free_bytes, &total));
    EXPECT_EQ(total, 80 * GiB);
    const CUdeviceptr large = take(70 * GiB);
    CUdeviceptr pointer = 0;
    EXPECT_EQ(cuMemAlloc_v2(&pointer, 20 * GiB), CUDA_ERROR_OUT_OF_MEMORY);  // the driver's own
    MUST(cuMemFree_v2(large));
}

SCENARIO_NAMED(each_device_has_its_own_cap) {  // "*": 1 GiB, "cuda:1": 2 GiB
    start();
    std::size_t total = 0;
    MUST(cuDeviceTotalMem_v2(&total, 0));
    EXPECT_EQ(total, 1 * GiB);
    MUST(cuDeviceTotalMem_v2(&total, 1));
    EXPECT_EQ(total, 2 * GiB);
    CUcontext second = nullptr;
    MUST(cuDevicePrimaryCtxRetain(&second, 1));
    const CUdeviceptr here = take(300 * MiB);
    MUST(cuCtxSetCurrent(second));
    const CUdeviceptr there = take(1 * GiB);
    EXPECT_EQ(curb_sim_held(1), kContext + 1 * GiB);
    // Freed with the other device current: the device that was charged is credited.
    MUST(cuMemFree_v2(here));
    EXPECT_EQ(told_held(), kContext + 1 * GiB);
    EXPECT_EQ(curb_sim_held(0), kContext);
    MUST(cuMemFree_v2(there));
    const CUmemAllocationProp properties = on_device(0);
    CUmemGenericAllocationHandle handle = 0;
    EXPECT_EQ(cuMemCreate(&handle, 600 * MiB, &properties, 0), CUDA_ERROR_OUT_OF_MEMORY);  // device 0's cap, not 1's
}

SCENARIO_NAMED(memory_is_charged_where_it_lives) {  // two devices, "*": 1 GiB
    start();
    CUcontext second = nullptr;
    MUST(cuDevicePrimaryCtxRetain(&second, 1));
    CUstream stream = nullptr;
    MUST(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
    const CUmemoryPool pool = make_pool(CU_MEM_LOCATION_TYPE_DEVICE, 1);
    CUdeviceptr block = 0;
    MUST(cuMemAllocFromPoolAsync(&block, 64 * MiB, pool, stream));
    EXPECT_EQ(curb_sim_held(0), kContext);
    EXPECT_EQ(curb_sim_held(1), kContext + 64 * MiB);
    EXPECT_EQ(told_held(), kContext);
    const CUmemAllocationProp properties = on_device(1);
    CUmemGenericAllocationHandle handle = 0;
    MUST(cuMemCreate(&handle, 64 * MiB, &properties, 0));
    EXPECT_EQ(told_held(), kContext);
    MUST(cuCtxSetCurrent(second));
    EXPECT_EQ(told_held(), kContext + 128 * MiB);
    EXPECT_EQ(told_held(), curb_sim_held(1));
    EXPECT_EQ(cuMemAllocFromPoolAsync(&block, 512 * MiB, pool, stream), CUDA_ERROR_OUT_OF_MEMORY);
    // A graph's memory as well.
    const AllocatingGraph graph(64 * MiB);
    MUST(cuGraphLaunch(graph.executable, nullptr));
    EXPECT_EQ(told_held(), curb_sim_held(1));
    MUST(cuCtxSetCurrent(nullptr));
    EXPECT_EQ(curb_sim_held(0), kContext + 64 * MiB);
}

SCENARIO_NAMED(a_key_finds_its_gpu) {  // two devices in reverse order, "*": 1 GiB, nvidia-smi's GPU 1: 2 GiB
    start();
    std::size_t total = 0;
    MUST(cuDeviceTotalMem_v2(&total, 0));
    EXPECT_EQ(total, 2 * GiB);
    MUST(cuDeviceTotalMem_v2(&total, 1));
    EXPECT_EQ(total, 1 * GiB);
    take(1 * GiB);
    EXPECT_EQ(told_held(), kContext + 1 * GiB);
    EXPECT_EQ(curb_sim_held(0), kContext + 1 * GiB);
}

SCENARIO_NAMED(a_key_finds_its_mig_instance) {  // MIG, a GPU of 80 GiB, its instance: 1 GiB
    start();
    EXPECT_EQ(told_total(), kCap);
    EXPECT_EQ(told_held(), kContext);
    fill([] {
        CUdeviceptr pointer = 0;
        return cuMemAlloc_v2(&pointer, 32 * MiB);
    });
    EXPECT_EQ(told_held(), curb_sim_held(0));
    // The growth of code is measured there too.
    load_module("curb-sim-module global=64MiB\n");
    EXPECT_EQ(told_held(64 * MiB), curb_sim_held(0));
}

SCENARIO_NAMED(whatever_is_freed_how_the_books_end_at_what_the_device_says) {
    start();
    CUstream stream = nullptr;
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    const CUdeviceptr plain = take(64 * MiB);
    CUdeviceptr pooled = 0;
    MUST(cuMemFreeAsync(plain, stream));
    EXPECT_EQ(told_held(64 * MiB), curb_sim_held(0));  // it comes back at the next synchronisation
    MUST(cuStreamSynchronize(stream));
    MUST(cuMemFree_v2(take(352 * MiB)));
    EXPECT_EQ(told_held(), curb_sim_held(0));
    EXPECT(cuMemFree_v2(plain) != CUDA_SUCCESS);
    MUST(cuMemAllocAsync(&pooled, 64 * MiB, stream));
    MUST(cuMemFree_v2(pooled));
    EXPECT(cuMemFree_v2(pooled) != CUDA_SUCCESS);
    EXPECT(cuMemFreeAsync(pooled, stream) != CUDA_SUCCESS);
    EXPECT_EQ(told_held(), curb_sim_held(0));
    // A context with blocks of every kind: its plain memory and arrays go with it, its pools' and mapped memory stays.
    CUcontext own = nullptr;
    MUST(cuStreamSynchronize(stream));
    MUST(cuDevicePrimaryCtxReset_v2(0));
    MUST(cuCtxCreate_v2(&own, 0, 0));
    take(32 * MiB);
    CUarray array = nullptr;
    const CUDA_ARRAY3D_DESCRIPTOR description = floats(1024, 1024, 8, 0);
    MUST(cuArray3DCreate_v2(&array, &description));
    const CUmemoryPool pool = make_pool(CU_MEM_LOCATION_TYPE_DEVICE, 0);
    MUST(cuMemAllocFromPoolAsync(&pooled, 32 * MiB, pool, nullptr));
    const CUmemAllocationProp properties = on_device(0);
    CUmemGenericAllocationHandle handle = 0;
    MUST(cuMemCreate(&handle, 32 * MiB, &properties, 0));
    EXPECT_EQ(told_held(), kContext + 128 * MiB);
    EXPECT_EQ(told_held(), curb_sim_held(0));
    MUST(cuCtxDestroy_v2(own));
    MUST(cuCtxCreate_v2(&own, 0, 0));
    EXPECT_EQ(told_held(), curb_sim_held(0));
    EXPECT_EQ(told_held(), kContext + 64 * MiB);
    MUST(cuMemRelease(handle));
    EXPECT_EQ(told_held(), curb_sim_held(0));
}

SCENARIO_NAMED(every_form_of_a_context_is_counted) {
    MUST(cuInit(0));
    const std::vector<CUresult (*)(CUcontext *)> forms = {
        [](CUcontext *context) { return cuCtxCreate_v2(context, 0, 0); },
        [](CUcontext *context) { return cuCtxCreate_v3(context, nullptr, 0, 0, 0); },
        [](CUcontext *context) { return cuCtxCreate_v4(context, nullptr, 0, 0); },
    };
    for (const auto create : forms)
        for (const auto destroy : {cuCtxDestroy_v2, cuCtxDestroy, cuCtxDetach}) {
            CUcontext context = nullptr, second = nullptr;
            MUST(create(&context));
            take(64 * MiB);
            EXPECT_EQ(told_held(), kContext + 64 * MiB);
            EXPECT_EQ(create(&second), CUDA_ERROR_OUT_OF_MEMORY);
            EXPECT_EQ(cuCtxCreate(&second, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
            MUST(destroy(context));
            EXPECT_EQ(curb_sim_held(0), 0U);
        }
    for (const auto end : {cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxReset,
                           cuDevicePrimaryCtxReset_v2}) {
        start();
        EXPECT_EQ(told_held(), kContext);
        take(64 * MiB);
        MUST(end(0));
        EXPECT_EQ(curb_sim_held(0), 0U);
    }
    start();
    EXPECT_EQ(told_held(), kContext);
}

SCENARIO_NAMED(every_form_of_a_launch_is_admitted) {
    start();
    const CUfunction function = kernel_of(load_module("curb-sim-module\nkernel much local=65536\n"), "much");
    CUlaunchConfig configuration;
    std::memset(&configuration, 0, sizeof configuration);
    configuration.gridDimX = configuration.gridDimY = configuration.gridDimZ = 1;
    configuration.blockDimX = configuration.blockDimY = configuration.blockDimZ = 1;
    for (const auto launch : {cuLaunchKernel, cuLaunchKernel_ptsz})
        EXPECT_EQ(launch(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr), CUDA_ERROR_OUT_OF_MEMORY);
    for (const auto launch : {cuLaunchKernelEx, cuLaunchKernelEx_ptsz})
        EXPECT_EQ(launch(&configuration, function, nullptr, nullptr), CUDA_ERROR_OUT_OF_MEMORY);
    for (const auto launch : {cuLaunchCooperativeKernel, cuLaunchCooperativeKernel_ptsz})
        EXPECT_EQ(launch(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr), CUDA_ERROR_OUT_OF_MEMORY);
    // By the handle that is good in every context, too.
    CUlibrary library = nullptr;
    CUkernel kernel = nullptr;
    MUST(cuLibraryLoadData(&library, "curb-sim-module\nkernel much local=65536\n", nullptr, nullptr, 0, nullptr,
                           nullptr, 0));
    MUST(cuLibraryGetKernel(&kernel, library, "much"));
    EXPECT_EQ(launch(reinterpret_cast<CUfunction>(kernel)), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT(curb_sim_held(0) < kContext + 16 * MiB);
}

SCENARIO_NAMED(every_form_of_loading_code_is_measured) {
    start();
    const char image[] = "curb-sim-module global=256MiB\nkernel k\n";
    const fs::path file = fs::temp_directory_path() / ("curb-scenario-" + std::to_string(getpid()));
    std::ofstream(file) << image;
    CUmodule module = nullptr;
    const std::vector<std::function<CUresult()>> forms = {
        [&] { return cuModuleLoad(&module, file.c_str()); },
        [&] { return cuModuleLoadData(&module, image); },
        [&] { return cuModuleLoadDataEx(&module, image, 0, nullptr, nullptr); },
        [&] { return cuModuleLoadFatBinary(&module, image); },
    };
    for (const auto &load : forms) {
        MUST(load());
        const CUmodule first = module;
        const std::uint64_t held = curb_sim_held(0);
        EXPECT_EQ(told_held(held - kContext), held);
        EXPECT_EQ(load(), CUDA_ERROR_OUT_OF_MEMORY);
        EXPECT_EQ(curb_sim_held(0), held);
        MUST(cuModuleUnload(first));
        EXPECT_EQ(told_held(), kContext);
    }
    fs::remove(file);
    // What is loaded lazily is not undone; but while more than the cap is held there is no more of it.
    std::vector<CUlibrary> libraries;
    int served = 0;
    CUdeviceptr start = 0;
    std::size_t bytes = 0;
    for (CUresult result = CUDA_SUCCESS; result == CUDA_SUCCESS && served < 20; served += result == CUDA_SUCCESS) {
        libraries.push_back(nullptr);
        MUST(cuLibraryLoadData(&libraries.back(), image, nullptr, nullptr, 0, nullptr, nullptr, 0));
        result = served % 2 ? cuLibraryGetGlobal(&start, &bytes, libraries.back(), "global")
                            : cuLibraryGetModule(&module, libraries.back());
    }
    EXPECT_EQ(served, 2);
    CUkernel kernel = nullptr;
    CUfunction function = nullptr;
    MUST(cuLibraryGetKernel(&kernel, libraries.front(), "k"));
    MUST(cuKernelGetFunction(&function, kernel));
    MUST(cuFuncLoad(function));
    for (const CUlibrary library : libraries) MUST(cuLibraryUnload(library));
    EXPECT_EQ(told_held(), kContext);
}

SCENARIO_NAMED(the_process_ends_with_everything_live) {
    start();
    CUstream stream = nullptr, capturing = nullptr;
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamCreate(&capturing, CU_STREAM_NON_BLOCKING));
    take(32 * MiB);
    CUdeviceptr block = 0;
    MUST(cuMemAllocManaged(&block, 32 * MiB, CU_MEM_ATTACH_GLOBAL));
    MUST(cuMemAllocAsync(&block, 32 * MiB, stream));
    const CUmemAllocationProp properties = on_device(0);
    CUmemGenericAllocationHandle handle = 0;
    MUST(cuMemCreate(&handle, 32 * MiB, &properties, 0));
    CUarray array = nullptr;
    const CUDA_ARRAY3D_DESCRIPTOR description = floats(1024, 1024, 8, 0);
    MUST(cuArray3DCreate_v2(&array, &description));
    const AllocatingGraph graph(32 * MiB);
    MUST(cuGraphLaunch(graph.executable, stream));
    MUST(launch(kernel_of(load_module("curb-sim-module\nkernel k\n"), "k")));
    EXPECT_EQ(told_held(curb_sim_held(0) - kContext - 160 * MiB),
              curb_sim_held(0) + 32 * MiB);  // managed memory is charged
    MUST(cuStreamBeginCapture_v2(capturing, CU_STREAM_CAPTURE_MODE_GLOBAL));
}

SCENARIO_NAMED(the_drivers_own_errors_come_through_and_the_books_balance) {  // CURB_SIM_FAULT makes calls fail
    start();
    CUdeviceptr pointer = 0;
    EXPECT_EQ(cuMemAlloc_v2(&pointer, 4 * MiB), CUDA_ERROR_UNKNOWN);
    EXPECT_EQ(told_held(), kContext);
    pointer = take(4 * MiB);
    EXPECT_EQ(cuMemFree_v2(pointer), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(told_held(), kContext + 4 * MiB);  // not freed, so still held
    MUST(cuMemFree_v2(pointer));
    const CUmemAllocationProp properties = on_device(0);
    CUmemGenericAllocationHandle handle = 0;
    EXPECT_EQ(cuMemCreate(&handle, 4 * MiB, &properties, 0), CUDA_ERROR_NOT_SUPPORTED);
    MUST(cuMemCreate(&handle, 4 * MiB, &properties, 0));
    EXPECT_EQ(cuMemRelease(handle), CUDA_ERROR_UNKNOWN);
    EXPECT_EQ(told_held(), kContext + 4 * MiB);
    MUST(cuMemRelease(handle));
    EXPECT_EQ(cuMemAllocAsync(&pointer, 4 * MiB, nullptr), CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(told_held(), kContext);
    EXPECT_EQ(curb_sim_held(0), kContext);
}

SCENARIO_NAMED(threads_never_take_more_than_the_cap_together) {
    CUcontext context = start();
    std::vector<std::thread> threads;
    for (unsigned seed = 1; seed <= 8; ++seed)
        threads.emplace_back([context, seed] {
            MUST(cuCtxSetCurrent(context));
            unsigned random = seed * 2654435761U;
            std::vector<CUdeviceptr> mine;
            for (int i = 0; i < 800; ++i) {
                random = random * 1664525U + 1013904223U;
                const std::uint64_t bytes = 1 + (std::uint64_t{random} >> 8) % (random & 1 ? 64 * MiB : 900 * KiB);
                CUdeviceptr pointer = 0;
                if (random % 3 == 0 && !mine.empty()) {
                    MUST(cuMemFree_v2(mine.back()));
                    mine.pop_back();
                } else if (const CUresult result = cuMemAlloc_v2(&pointer, bytes); result == CUDA_SUCCESS) {
                    mine.push_back(pointer);
                } else {
                    EXPECT_EQ(result, CUDA_ERROR_OUT_OF_MEMORY);
                }
                EXPECT(curb_sim_held(0) <= kCap);
            }
            for (const CUdeviceptr pointer : mine) MUST(cuMemFree_v2(pointer));
        });
    for (std::thread &thread : threads) thread.join();
    EXPECT_EQ(curb_sim_held(0), kContext);
    EXPECT(within(std::chrono::seconds(1), [] { return told_held() == kContext; }));
}

namespace {

// One thread's blocks of one kind: takes another, or gives the last back.
struct Taker {
    std::function<bool(std::uint64_t)> take;  // false: refused
    std::function<void()> give;
    int held = 0;
};

void expect_refused(CUresult result) { EXPECT_EQ(result, CUDA_ERROR_OUT_OF_MEMORY); }

template <class Handle, class Take, class Give>
Taker taker(Take take, Give give) {
    auto blocks = std::make_shared<std::vector<Handle>>();
    return {[=](std::uint64_t bytes) {
                Handle handle{};
                const CUresult result = take(&handle, bytes);
                if (result == CUDA_SUCCESS)
                    blocks->push_back(handle);
                else
                    expect_refused(result);
                return result == CUDA_SUCCESS;
            },
            [=] {
                MUST(give(blocks->back()));
                blocks->pop_back();
            }};
}

}  // namespace

SCENARIO_NAMED(threads_that_take_every_kind_never_hold_more_than_the_cap_together) {
    const CUcontext context = start();
    std::vector<std::thread> threads;
    for (unsigned seed = 1; seed <= 6; ++seed)
        threads.emplace_back([context, seed] {
            MUST(cuCtxSetCurrent(context));
            CUstream stream = nullptr;
            MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
            std::vector<Taker> takers;
            takers.push_back(taker<CUdeviceptr>(
                [](CUdeviceptr *block, std::uint64_t bytes) { return cuMemAlloc_v2(block, bytes); }, cuMemFree_v2));
            takers.push_back(taker<CUdeviceptr>(
                [=](CUdeviceptr *block, std::uint64_t bytes) { return cuMemAllocAsync(block, bytes, stream); },
                [=](CUdeviceptr block) { return cuMemFreeAsync(block, stream); }));
            takers.push_back(taker<CUmemGenericAllocationHandle>(
                [](CUmemGenericAllocationHandle *handle, std::uint64_t bytes) {
                    const CUmemAllocationProp properties = on_device(0);
                    return cuMemCreate(handle, bytes / (2 * MiB) * 2 * MiB + 2 * MiB, &properties, 0);
                },
                cuMemRelease));
            takers.push_back(taker<CUarray>(
                [](CUarray *array, std::uint64_t bytes) {
                    const CUDA_ARRAY3D_DESCRIPTOR description = floats(512, bytes / 2048 + 1, 0, 0);
                    return cuArray3DCreate_v2(array, &description);
                },
                cuArrayDestroy));
            takers.push_back(taker<std::shared_ptr<AllocatingGraph>>(
                [=](std::shared_ptr<AllocatingGraph> *graph, std::uint64_t bytes) {
                    *graph = std::make_shared<AllocatingGraph>(bytes);
                    const CUresult result = cuGraphLaunch((*graph)->executable, stream);
                    if (result != CUDA_SUCCESS) MUST(cuGraphExecDestroy((*graph)->executable));
                    return result;
                },
                [=](const std::shared_ptr<AllocatingGraph> &graph) {
                    MUST(cuMemFreeAsync(graph->block, stream));
                    return cuGraphExecDestroy(graph->executable);
                }));
            unsigned random = seed * 2654435761U;
            for (int i = 0; i < 300; ++i) {
                random = random * 1664525U + 1013904223U;
                Taker &one = takers[(random >> 8) % takers.size()];
                const std::uint64_t bytes = 1 + (std::uint64_t{random} >> 8) % (random & 16 ? 48 * MiB : 900 * KiB);
                if (one.held > 0 && (random >> 20) % 3 == 0) {
                    one.give();
                    --one.held;
                } else if (one.take(bytes)) {
                    ++one.held;
                }
                EXPECT(curb_sim_held(0) <= kCap);
            }
            for (Taker &one : takers)
                for (; one.held > 0; --one.held) one.give();
            MUST(cuStreamSynchronize(stream));
        });
    for (std::thread &thread : threads) thread.join();
    MUST(cuCtxSynchronize());
    MUST(cuDeviceGraphMemTrim(0));
    EXPECT_EQ(curb_sim_held(0), kContext);
    EXPECT(within(std::chrono::seconds(1), [] { return told_held() == kContext; }));
}
