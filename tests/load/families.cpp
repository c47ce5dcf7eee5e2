#include "families.hpp"

#include <cstring>
#include <initializer_list>

namespace load {

namespace {

CUstream stream(const Place &place, unsigned random) { return place.streams[random % Place::kStreams]; }

CUmemAllocationProp pinned_on(int device) {
    CUmemAllocationProp properties;
    std::memset(&properties, 0, sizeof properties);
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
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

CUresult take_mapping(const Place &place, unsigned, Block &block) {
    const std::uint64_t size = in_granules(block.bytes);
    const CUmemAllocationProp properties = pinned_on(place.device);
    const CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    if (const CUresult result = cuMemCreate(&block.handle, size, &properties, 0)) return result;
    block.bytes = size;
    return no_refusal(first_error({cuMemAddressReserve(&block.pointer, size, 0, 0, 0),
                                   cuMemMap(block.pointer, size, 0, block.handle, 0),
                                   cuMemSetAccess(block.pointer, size, &access, 1)}));
}

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

CUresult free_plainly(const Place &, unsigned, const Block &block) { return cuMemFree_v2(block.pointer); }
CUresult free_in_stream(const Place &place, unsigned random, const Block &block) {
    return random % 16 == 0 ? cuMemFree_v2(block.pointer) : cuMemFreeAsync(block.pointer, stream(place, random));
}

constexpr Family kFamilies[] = {
    {"plain", 8, Kind::any,
     [](const Place &, unsigned, Block &block) { return cuMemAlloc_v2(&block.pointer, block.bytes); }, free_plainly},
    {"plain, freed in a stream", 2, Kind::any,
     [](const Place &, unsigned, Block &block) { return cuMemAlloc_v2(&block.pointer, block.bytes); },
     [](const Place &place, unsigned random, const Block &block) {
         return cuMemFreeAsync(block.pointer, stream(place, random));
     }},
    {"pitch", 2, Kind::any, take_pitch, free_plainly},
    {"async", 6, Kind::stream_ordered,
     [](const Place &place, unsigned random, Block &block) {
         return cuMemAllocAsync(&block.pointer, block.bytes, stream(place, random));
     },
     free_in_stream},
    {"pool", 4, Kind::stream_ordered,
     [](const Place &place, unsigned random, Block &block) {
         return cuMemAllocFromPoolAsync(&block.pointer, block.bytes, place.pools[random / 8 % Place::kPools],
                                        stream(place, random));
     },
     free_in_stream},
    {"mapping", 2, Kind::any, take_mapping, give_mapping},
    {"managed", 1, Kind::managed,
     [](const Place &, unsigned, Block &block) {
         return cuMemAllocManaged(&block.pointer, block.bytes, CU_MEM_ATTACH_GLOBAL);
     },
     free_plainly},
    {"host", 1, Kind::any,
     [](const Place &, unsigned random, Block &block) {
         return random % 2 ? cuMemAllocHost_v2(&block.host, block.bytes % (64 * kKiB) + 1)
                           : cuMemHostAlloc(&block.host, block.bytes % (64 * kKiB) + 1, 0);
     },
     [](const Place &, unsigned, const Block &block) { return cuMemFreeHost(block.host); }},
    {"array", 2, Kind::any, take_array,
     [](const Place &, unsigned, const Block &block) { return cuArrayDestroy(block.array); }},
    {"mipmap", 1, Kind::any, take_mipmap,
     [](const Place &, unsigned, const Block &block) { return cuMipmappedArrayDestroy(block.mipmap); }},
    {"graph", 1, Kind::any, take_graph, give_graph},
};

}  // namespace

const Family &family(unsigned random, std::optional<Kind> without) {
    const auto weight = [=](const Family &one) { return one.kind == without ? 0 : one.weight; };
    unsigned sum = 0;
    for (const Family &one : kFamilies) sum += weight(one);
    unsigned at = random % sum;
    const Family *one = kFamilies;
    for (; at >= weight(*one); ++one) at -= weight(*one);
    return *one;
}

}  // namespace load
