#include "families.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <initializer_list>

namespace load {

namespace {

CUstream stream(const Place &place, unsigned random) { return place.streams[random % Place::kStreams]; }

CUmemAllocationProp pinned_on(int device, CUmemAllocationHandleType handles) {
    CUmemAllocationProp properties;
    std::memset(&properties, 0, sizeof properties);
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    properties.requestedHandleTypes = handles;
    return properties;
}

std::uint64_t in_granules(std::uint64_t bytes) { return (bytes + 2 * kMiB - 1) / (2 * kMiB) * (2 * kMiB); }

// What a call after the first one fails with is never a refusal.
CUresult first_error(std::initializer_list<CUresult> results) {
    for (const CUresult result : results)
        if (result != CUDA_SUCCESS) return result;
    return CUDA_SUCCESS;
}
CUresult no_refusal(CUresult result) { return result == CUDA_ERROR_OUT_OF_MEMORY ? CUDA_ERROR_UNKNOWN : result; }

CUresult take_pitch(const Place &, unsigned, Block &block) {
    std::size_t pitch = 0;
    return cuMemAllocPitch_v2(&block.pointer, &pitch, 1000, block.bytes / 1024 + 1, 4);
}

CUresult map(const Place &place, Block &block, CUmemAllocationHandleType handles) {
    const std::uint64_t size = in_granules(block.bytes);
    const CUmemAllocationProp properties = pinned_on(place.device, handles);
    const CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    if (const CUresult result = cuMemCreate(&block.handle, size, &properties, 0)) return result;
    block.bytes = size;
    return no_refusal(first_error({cuMemAddressReserve(&block.pointer, size, 0, 0, 0),
                                   cuMemMap(block.pointer, size, 0, block.handle, 0),
                                   cuMemSetAccess(block.pointer, size, &access, 1)}));
}
CUresult take_mapping(const Place &place, unsigned, Block &block) { return map(place, block, CU_MEM_HANDLE_TYPE_NONE); }

// In both orders: the memory goes back with the last of handle and mapping.
CUresult give_mapping(const Place &, unsigned random, const Block &block) {
    const CUresult early = random % 2 ? cuMemRelease(block.handle) : CUDA_SUCCESS;
    return first_error({early, cuMemUnmap(block.pointer, block.bytes),
                        random % 2 ? CUDA_SUCCESS : cuMemRelease(block.handle),
                        cuMemAddressFree(block.pointer, block.bytes)});
}

CUresult take_array(const Place &, unsigned, Block &block) {
    const CUDA_ARRAY_DESCRIPTOR description{512, block.bytes / 2048 + 1, CU_AD_FORMAT_FLOAT, 1};
    return cuArrayCreate_v2(&block.array, &description);
}

CUresult take_mipmap(const Place &, unsigned, Block &block) {
    const CUDA_ARRAY3D_DESCRIPTOR description{512, block.bytes / 2048 + 1, 0, CU_AD_FORMAT_FLOAT, 1, 0};
    return cuMipmappedArrayCreate(&block.mipmap, &description, 1);
}

CUresult take_graph(const Place &place, unsigned random, Block &block) {
    CUDA_MEM_ALLOC_NODE_PARAMS parameters;
    std::memset(&parameters, 0, sizeof parameters);
    parameters.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    parameters.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, place.device};
    parameters.bytesize = block.bytes;
    CUgraphNode node = nullptr;
    const CUresult made = first_error({cuGraphCreate(&block.graph, 0),
                                       cuGraphAddMemAllocNode(&node, block.graph, nullptr, 0, &parameters),
                                       cuGraphInstantiateWithFlags(&block.executable, block.graph, 0)});
    if (made != CUDA_SUCCESS) return no_refusal(made);
    block.pointer = parameters.dptr;
    const CUresult result = cuGraphLaunch(block.executable, stream(place, random));
    if (result == CUDA_SUCCESS) return result;
    const CUresult ended = first_error({cuGraphExecDestroy(block.executable), cuGraphDestroy(block.graph)});
    return ended == CUDA_SUCCESS ? result : no_refusal(ended);
}

// What a launch has allocated is freed in a stream, or by a plain free.
CUresult give_graph(const Place &place, unsigned random, const Block &block) {
    return first_error({random % 2 ? cuMemFreeAsync(block.pointer, stream(place, random)) : cuMemFree_v2(block.pointer),
                        cuGraphExecDestroy(block.executable), cuGraphDestroy(block.graph)});
}

// A block of a pool that ends with it, before or after it.
CUresult take_from_own_pool(const Place &place, unsigned random, Block &block, CUmemAllocationType type,
                            CUmemLocation location) {
    CUmemPoolProps properties;
    std::memset(&properties, 0, sizeof properties);
    properties.allocType = type;
    properties.location = location;
    properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if (const CUresult made = cuMemPoolCreate(&block.pool, &properties)) return no_refusal(made);
    const CUresult result = cuMemAllocFromPoolAsync(&block.pointer, block.bytes, block.pool, stream(place, random));
    if (result == CUDA_SUCCESS) return result;
    const CUresult ended = cuMemPoolDestroy(block.pool);
    return ended == CUDA_SUCCESS ? result : no_refusal(ended);
}
CUresult give_own_pool(const Place &place, unsigned random, const Block &block) {
    const CUresult early = random % 2 ? cuMemPoolDestroy(block.pool) : CUDA_SUCCESS;
    return first_error({early, cuMemFreeAsync(block.pointer, stream(place, random / 2)),
                        random % 2 ? CUDA_SUCCESS : cuMemPoolDestroy(block.pool)});
}

CUresult take_imported_from_pool(const Place &place, unsigned random, Block &block) {
    const CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, place.device};
    if (const CUresult result = take_from_own_pool(place, random, block, CU_MEM_ALLOCATION_TYPE_PINNED, location))
        return result;
    int file = -1;
    CUmemPoolPtrExportData exported;
    const CUresult result =
        first_error({cuMemPoolExportToShareableHandle(&file, block.pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                     cuMemPoolExportPointer(&exported, block.pointer),
                     cuMemPoolImportFromShareableHandle(&block.imported_pool,
                                                        reinterpret_cast<void *>(static_cast<std::intptr_t>(file)),
                                                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                     cuMemPoolImportPointer(&block.imported, block.imported_pool, &exported)});
    close(file);
    return no_refusal(result);
}
CUresult give_imported_from_pool(const Place &place, unsigned random, const Block &block) {
    const CUresult result =
        first_error({cuMemFreeAsync(block.imported, stream(place, random)), cuMemPoolDestroy(block.imported_pool)});
    return first_error({result, give_own_pool(place, random, block)});
}

CUresult take_imported_mapping(const Place &place, unsigned, Block &block) {
    if (const CUresult result = map(place, block, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)) return result;
    int file = -1;
    const CUresult result = first_error(
        {cuMemExportToShareableHandle(&file, block.handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
         cuMemImportFromShareableHandle(&block.second, reinterpret_cast<void *>(static_cast<std::intptr_t>(file)),
                                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)});
    close(file);
    return no_refusal(result);
}
CUresult take_retained_mapping(const Place &place, unsigned random, Block &block) {
    if (const CUresult result = take_mapping(place, random, block)) return result;
    return no_refusal(
        cuMemRetainAllocationHandle(&block.second, reinterpret_cast<void *>(block.pointer + random % block.bytes)));
}
CUresult give_mapping_of_two_handles(const Place &place, unsigned random, const Block &block) {
    const CUresult early = random / 2 % 2 ? cuMemRelease(block.second) : CUDA_SUCCESS;
    return first_error(
        {early, give_mapping(place, random, block), random / 2 % 2 ? CUDA_SUCCESS : cuMemRelease(block.second)});
}

// What a launch of a captured graph allocates.
CUresult take_captured(const Place &, unsigned, Block &block) {
    {
        const std::shared_lock lock(captures());
        const CUresult begun = first_error({cuStreamCreate(&block.stream, CU_STREAM_NON_BLOCKING),
                                            cuStreamBeginCapture_v2(block.stream, CU_STREAM_CAPTURE_MODE_RELAXED)});
        if (begun != CUDA_SUCCESS) return no_refusal(begun);
        const CUresult taken = cuMemAllocAsync(&block.pointer, block.bytes, block.stream);
        const CUresult ended = cuStreamEndCapture(block.stream, &block.graph);
        if (taken != CUDA_SUCCESS || ended != CUDA_SUCCESS) {
            if (block.graph) cuGraphDestroy(block.graph);
            const CUresult gone = cuStreamDestroy_v2(block.stream);
            return ended == CUDA_SUCCESS && gone == CUDA_SUCCESS ? taken : no_refusal(ended ? ended : gone);
        }
    }
    CUresult result = cuGraphInstantiateWithFlags(&block.executable, block.graph, 0);
    if (result != CUDA_SUCCESS) return no_refusal(result);
    result = cuGraphLaunch(block.executable, block.stream);
    const CUresult gone = cuStreamDestroy_v2(block.stream);
    if (result == CUDA_SUCCESS) return no_refusal(gone);
    const CUresult ended = first_error({gone, cuGraphExecDestroy(block.executable), cuGraphDestroy(block.graph)});
    return ended == CUDA_SUCCESS ? result : no_refusal(ended);
}

// A capture that is still under way; with a stream forked into it and destroyed it cannot succeed any more.
CUresult begin_capture(Block &block) {
    return no_refusal(first_error({cuStreamCreate(&block.stream, CU_STREAM_NON_BLOCKING),
                                   cuStreamBeginCapture_v2(block.stream, CU_STREAM_CAPTURE_MODE_RELAXED),
                                   cuMemAllocAsync(&block.pointer, block.bytes, block.stream)}));
}
CUresult take_open_capture(const Place &, unsigned, Block &block) {
    const std::shared_lock lock(captures());
    return begin_capture(block);
}
CUresult take_broken_capture(const Place &, unsigned, Block &block) {
    const std::shared_lock lock(captures());
    CUstream forked = nullptr;
    CUevent fork = nullptr;
    return first_error({begin_capture(block), cuStreamCreate(&forked, CU_STREAM_NON_BLOCKING),
                        cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING), cuEventRecord(fork, block.stream),
                        cuStreamWaitEvent(forked, fork, 0), cuEventDestroy_v2(fork), cuStreamDestroy_v2(forked)});
}
CUresult give_open_capture(const Place &, unsigned random, const Block &block) {
    CUgraph graph = nullptr;
    if (random % 2 == 0) cuStreamEndCapture(block.stream, &graph);  // else it ends with its stream
    return first_error({graph ? cuGraphDestroy(graph) : CUDA_SUCCESS, cuStreamDestroy_v2(block.stream)});
}

// A context with a block and an array in it, which end with it or before.
CUresult take_context(const Place &place, unsigned, Block &block) {
    if (const CUresult result = cuCtxCreate_v2(&block.context, 0, place.device)) return result;
    const CUDA_ARRAY_DESCRIPTOR description{512, block.bytes / 2048 + 1, CU_AD_FORMAT_FLOAT, 1};
    CUresult result = cuMemAlloc_v2(&block.pointer, block.bytes);
    if (result == CUDA_SUCCESS) result = cuArrayCreate_v2(&block.array, &description);
    const CUresult ended = result == CUDA_SUCCESS ? cuCtxPopCurrent_v2(nullptr) : cuCtxDestroy_v2(block.context);
    return ended == CUDA_SUCCESS ? result : no_refusal(ended);
}
CUresult give_context(const Place &, unsigned random, const Block &block) {
    CUresult result = cuCtxPushCurrent_v2(block.context);
    if (random % 2) result = first_error({result, cuMemFree_v2(block.pointer)});
    if (random / 2 % 2) result = first_error({result, cuArrayDestroy(block.array)});
    return first_error({result, cuCtxDestroy_v2(block.context)});
}

// A green context, and a block that is allocated in it, which is the primary context's. What it takes itself stays
// until that one goes, so only the first ones are made: many would fill the cap for good.
CUresult take_green(const Place &place, unsigned, Block &block) {
    static std::atomic<int> left{32};
    if (left.fetch_sub(1, std::memory_order_relaxed) <= 0) return cuMemAlloc_v2(&block.pointer, block.bytes);
    CUdevResource all{}, group{};
    unsigned groups = 1;
    CUdevResourceDesc description = nullptr;
    const CUresult described = first_error({cuDeviceGetDevResource(place.device, &all, CU_DEV_RESOURCE_TYPE_SM),
                                            cuDevSmResourceSplitByCount(&group, &groups, &all, nullptr, 0, 16),
                                            cuDevResourceGenerateDesc(&description, &group, 1)});
    if (described != CUDA_SUCCESS) return no_refusal(described);
    if (const CUresult result = cuGreenCtxCreate(&block.green, description, place.device, CU_GREEN_CTX_DEFAULT_STREAM))
        return result;
    CUcontext context = nullptr;
    if (const CUresult result = first_error({cuCtxFromGreenCtx(&context, block.green), cuCtxPushCurrent_v2(context)}))
        return no_refusal(result);
    const CUresult result = cuMemAlloc_v2(&block.pointer, block.bytes), popped = cuCtxPopCurrent_v2(nullptr);
    const CUresult ended = result == CUDA_SUCCESS ? popped : first_error({popped, cuGreenCtxDestroy(block.green)});
    return ended == CUDA_SUCCESS ? result : no_refusal(ended);
}

CUresult take_module(const Place &, unsigned, Block &block) {
    return cuModuleLoadData(&block.module, "// curb-sim-module code=2MiB global=4MiB\n// kernel small\n");
}
// A launch takes local memory for every thread of the device, which stays with the context.
CUresult take_launched(const Place &place, unsigned random, Block &block) {
    CUfunction kernel = nullptr;
    if (const CUresult result =
            cuModuleLoadData(&block.module, "// curb-sim-module code=2MiB\n// kernel frame local=2048\n"))
        return result;
    CUresult result = cuModuleGetFunction(&kernel, block.module, "frame");
    if (result == CUDA_SUCCESS)
        result = cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream(place, random), nullptr, nullptr);
    const CUresult ended = result == CUDA_SUCCESS ? result : cuModuleUnload(block.module);
    return ended == CUDA_SUCCESS ? result : no_refusal(ended);
}
CUresult unload(const Place &, unsigned, const Block &block) { return cuModuleUnload(block.module); }

CUresult free_plainly(const Place &, unsigned, const Block &block) { return cuMemFree_v2(block.pointer); }
CUresult free_in_stream(const Place &place, unsigned random, const Block &block) {
    return random % 16 == 0 ? cuMemFree_v2(block.pointer) : cuMemFreeAsync(block.pointer, stream(place, random));
}

constexpr Family kFamilies[] = {
    {"plain", 80, Kind::any, EndsWith::its_context,
     [](const Place &, unsigned, Block &block) { return cuMemAlloc_v2(&block.pointer, block.bytes); }, free_plainly},
    {"plain, freed in a stream", 20, Kind::any, EndsWith::its_context,
     [](const Place &, unsigned, Block &block) { return cuMemAlloc_v2(&block.pointer, block.bytes); },
     [](const Place &place, unsigned random, const Block &block) {
         return cuMemFreeAsync(block.pointer, stream(place, random));
     }},
    {"pitch", 20, Kind::any, EndsWith::its_context, take_pitch, free_plainly},
    {"async", 60, Kind::stream_ordered, EndsWith::nothing,
     [](const Place &place, unsigned random, Block &block) {
         return cuMemAllocAsync(&block.pointer, block.bytes, stream(place, random));
     },
     free_in_stream},
    {"pool", 40, Kind::stream_ordered, EndsWith::nothing,
     [](const Place &place, unsigned random, Block &block) {
         return cuMemAllocFromPoolAsync(&block.pointer, block.bytes, place.pools[random / 8 % Place::kPools],
                                        stream(place, random));
     },
     free_in_stream},
    {"mapping", 20, Kind::any, EndsWith::nothing, take_mapping, give_mapping},
    {"managed", 10, Kind::managed, EndsWith::its_context,
     [](const Place &, unsigned, Block &block) {
         return cuMemAllocManaged(&block.pointer, block.bytes, CU_MEM_ATTACH_GLOBAL);
     },
     free_plainly},
    {"host", 10, Kind::any, EndsWith::its_context,
     [](const Place &, unsigned random, Block &block) {
         return random % 2 ? cuMemAllocHost_v2(&block.host, block.bytes % (64 * kKiB) + 1)
                           : cuMemHostAlloc(&block.host, block.bytes % (64 * kKiB) + 1, 0);
     },
     [](const Place &, unsigned, const Block &block) { return cuMemFreeHost(block.host); }},
    {"array", 20, Kind::any, EndsWith::its_context, take_array,
     [](const Place &, unsigned, const Block &block) { return cuArrayDestroy(block.array); }},
    {"mipmap", 10, Kind::any, EndsWith::its_context, take_mipmap,
     [](const Place &, unsigned, const Block &block) { return cuMipmappedArrayDestroy(block.mipmap); }},
    {"graph", 10, Kind::any, EndsWith::nothing, take_graph, give_graph},
    {"captured graph", 10, Kind::any, EndsWith::nothing, take_captured, give_graph},
    {"pool of its own", 10, Kind::stream_ordered, EndsWith::nothing,
     [](const Place &place, unsigned random, Block &block) {
         return take_from_own_pool(place, random, block, CU_MEM_ALLOCATION_TYPE_PINNED,
                                   {CU_MEM_LOCATION_TYPE_DEVICE, place.device});
     },
     give_own_pool},
    {"host pool", 10, Kind::any, EndsWith::nothing,
     [](const Place &place, unsigned random, Block &block) {
         block.bytes = block.bytes % (64 * kKiB) + 1;
         return take_from_own_pool(place, random, block, CU_MEM_ALLOCATION_TYPE_PINNED, {CU_MEM_LOCATION_TYPE_HOST, 0});
     },
     give_own_pool},
    {"managed pool", 10, Kind::managed, EndsWith::nothing,
     [](const Place &place, unsigned random, Block &block) {
         return take_from_own_pool(place, random, block, CU_MEM_ALLOCATION_TYPE_MANAGED,
                                   {CU_MEM_LOCATION_TYPE_DEVICE, place.device});
     },
     give_own_pool},
    {"imported from a pool", 10, Kind::stream_ordered, EndsWith::nothing, take_imported_from_pool,
     give_imported_from_pool},
    {"imported mapping", 10, Kind::any, EndsWith::nothing, take_imported_mapping, give_mapping_of_two_handles},
    {"retained mapping", 10, Kind::any, EndsWith::nothing, take_retained_mapping, give_mapping_of_two_handles},
    {"context", 10, Kind::contexts, EndsWith::nothing, take_context, give_context},
    {"module", 10, Kind::code, EndsWith::its_context, take_module, unload},
    {"launched kernel", 10, Kind::code, EndsWith::its_context, take_launched, unload},
    {"kept block", 10, Kind::any, EndsWith::its_context,
     [](const Place &, unsigned, Block &block) {
         return first_error({cuMemAlloc_v2(&block.pointer, block.bytes), cuMemFree_v2(block.pointer)});
     },
     [](const Place &, unsigned, const Block &) { return CUDA_SUCCESS; }},
    {"green context", 10, Kind::any, EndsWith::primary_context, take_green,
     [](const Place &, unsigned, const Block &block) {
         return first_error({cuMemFree_v2(block.pointer), block.green ? cuGreenCtxDestroy(block.green) : CUDA_SUCCESS});
     }},
    {"open capture", 1, Kind::open_capture, EndsWith::its_context, take_open_capture, give_open_capture},
    {"broken capture", 1, Kind::open_capture, EndsWith::its_context, take_broken_capture, give_open_capture},
};

}  // namespace

std::span<const Family> families() { return kFamilies; }

const Family &family(unsigned random, const std::vector<Kind> &without) {
    const auto weight = [&](const Family &one) {
        return std::find(without.begin(), without.end(), one.kind) == without.end() ? one.weight : 0;
    };
    unsigned sum = 0;
    for (const Family &one : kFamilies) sum += weight(one);
    unsigned at = random % sum;
    const Family *one = kFamilies;
    for (; at >= weight(*one); ++one) at -= weight(*one);
    return *one;
}

std::shared_mutex &captures() {
    static auto &all = *new std::shared_mutex;
    return all;
}

}  // namespace load
