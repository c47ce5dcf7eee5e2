#include "families.hpp"

#include <unistd.h>

#include <algorithm>
#include <initializer_list>

#include "kernels.hpp"
#include "properties.hpp"

namespace families {

namespace {

CUresult first_error(std::initializer_list<CUresult> results) {
    for (const CUresult result : results)
        if (result != CUDA_SUCCESS) return result;
    return CUDA_SUCCESS;
}
// Only the call that allocates may be refused: of any other call out-of-memory is an error.
CUresult no_refusal(CUresult result) { return result == CUDA_ERROR_OUT_OF_MEMORY ? CUDA_ERROR_UNKNOWN : result; }
// Returns the refusal, or the error of the calls that undo what was made before it.
CUresult refused(CUresult result, CUresult ended) { return ended == CUDA_SUCCESS ? result : no_refusal(ended); }

Bytes round_up(Bytes bytes, Bytes unit) { return (bytes + unit - 1) / unit * unit; }

CUmemLocation on(const Place &place) { return {CU_MEM_LOCATION_TYPE_DEVICE, place.device}; }

// --- memory of a context, by its size

CUresult take_plain(const Use &use, Block &block) { return CU(cuMemAlloc_v2, &block.pointer, block.bytes); }
CUresult free_plainly(const Use &use, const Block &block) { return CU(cuMemFree_v2, block.pointer); }
CUresult free_in_stream(const Use &use, const Block &block) { return CU(cuMemFreeAsync, block.pointer, use.stream()); }
CUresult free_either_way(const Use &use, const Block &block) {
    return use.random % 16 == 0 ? free_plainly(use, block) : free_in_stream(use, block);
}

// Rows of 1,025 bytes: the pitch makes them half as long again.
CUresult take_pitch(const Use &use, Block &block) {
    std::size_t pitch = 0;
    const Bytes rows = block.bytes / 1536 + 1;
    const CUresult result = CU(cuMemAllocPitch_v2, &block.pointer, &pitch, 1025, rows, 4);
    block.bytes = pitch * rows;
    return result;
}

CUresult take_managed(const Use &use, Block &block) {
    return CU(cuMemAllocManaged, &block.pointer, block.bytes, CU_MEM_ATTACH_GLOBAL);
}

// Freed at once: curb may keep it for the next request.
CUresult take_kept(const Use &use, Block &block) {
    if (const CUresult result = take_plain(use, block)) return result;
    return no_refusal(free_plainly(use, block));
}
CUresult give_nothing(const Use &, const Block &) { return CUDA_SUCCESS; }

CUresult take_host(const Use &use, Block &block) {
    block.bytes = block.bytes % (64 * kKiB) + 1;
    return use.random % 2 ? CU(cuMemAllocHost_v2, &block.host, block.bytes)
                          : CU(cuMemHostAlloc, &block.host, block.bytes, 0);
}
CUresult free_host(const Use &use, const Block &block) { return CU(cuMemFreeHost, block.host); }

// --- arrays of floats

// Narrow arrays share granules. The height of a wide one of 512 MiB is within the driver's limits.
std::size_t width_for(Bytes bytes) { return bytes > 64 * kMiB ? 8192 : 512; }
std::size_t height_for(Bytes bytes) { return round_up(bytes, 4 * width_for(bytes)) / (4 * width_for(bytes)); }

CUresult take_array(const Use &use, Block &block) {
    const CUDA_ARRAY_DESCRIPTOR shape{width_for(block.bytes), height_for(block.bytes), CU_AD_FORMAT_FLOAT, 1};
    block.bytes = 4 * shape.Width * shape.Height;
    return CU(cuArrayCreate_v2, &block.array, &shape);
}
// The driver rounds the depth up to a multiple of 16 layers; 16 of these layers are 1 MiB.
CUresult take_cube(const Use &use, Block &block) {
    block.bytes = round_up(block.bytes, kMiB);
    const CUDA_ARRAY3D_DESCRIPTOR shape{128, 128, 16 * block.bytes / kMiB, CU_AD_FORMAT_FLOAT, 1, 0};
    return CU(cuArray3DCreate_v2, &block.array, &shape);
}
CUresult destroy_array(const Use &use, const Block &block) { return CU(cuArrayDestroy, block.array); }

CUresult take_mipmap(const Use &use, Block &block) {
    const CUDA_ARRAY3D_DESCRIPTOR shape{width_for(block.bytes), height_for(block.bytes), 0, CU_AD_FORMAT_FLOAT, 1, 0};
    block.bytes = 4 * shape.Width * shape.Height;
    return CU(cuMipmappedArrayCreate, &block.mipmap, &shape, 1);
}
CUresult destroy_mipmap(const Use &use, const Block &block) { return CU(cuMipmappedArrayDestroy, block.mipmap); }

// --- mapped memory

CUresult map(const Use &use, Block &block, CUmemAllocationHandleType handles) {
    const CUmemAllocationProp properties = on_device(use.place.device, handles);
    const CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    block.bytes = round_up(block.bytes, 2 * kMiB);
    if (const CUresult result = CU(cuMemCreate, &block.handle, block.bytes, &properties, 0)) return result;
    return no_refusal(first_error({CU(cuMemAddressReserve, &block.pointer, block.bytes, 0, 0, 0),
                                   CU(cuMemMap, block.pointer, block.bytes, 0, block.handle, 0),
                                   CU(cuMemSetAccess, block.pointer, block.bytes, &access, 1)}));
}
CUresult unmap(const Use &use, const Block &block) {
    return first_error({CU(cuMemUnmap, block.pointer, block.bytes), CU(cuMemAddressFree, block.pointer, block.bytes)});
}

CUresult take_mapping(const Use &use, Block &block) { return map(use, block, CU_MEM_HANDLE_TYPE_NONE); }
// Releases handle and mapping in either order: the memory goes back with the last of them.
CUresult give_mapping(const Use &use, const Block &block) {
    const CUresult early = use.random % 2 ? CU(cuMemRelease, block.handle) : CUDA_SUCCESS;
    return first_error({early, unmap(use, block), use.random % 2 ? CUDA_SUCCESS : CU(cuMemRelease, block.handle)});
}

// Releases the handle right after the mapping, as ggml and NCCL do: the mapping alone keeps the memory.
CUresult take_mapping_alone(const Use &use, Block &block) {
    if (const CUresult result = take_mapping(use, block)) return result;
    return no_refusal(CU(cuMemRelease, block.handle));
}

CUresult take_imported_mapping(const Use &use, Block &block) {
    if (const CUresult result = map(use, block, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)) return result;
    int file = -1;
    const CUresult exported =
        CU(cuMemExportToShareableHandle, &file, block.handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    const CUresult imported =
        CU(cuMemImportFromShareableHandle, &block.second, reinterpret_cast<void *>(static_cast<std::intptr_t>(file)),
           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    close(file);
    return no_refusal(first_error({exported, imported}));
}
CUresult take_retained_mapping(const Use &use, Block &block) {
    if (const CUresult result = take_mapping(use, block)) return result;
    return no_refusal(CU(cuMemRetainAllocationHandle, &block.second,
                         reinterpret_cast<void *>(block.pointer + use.random % block.bytes)));
}
CUresult give_mapping_of_two_handles(const Use &use, const Block &block) {
    const bool early = use.random / 2 % 2;
    const CUresult first = early ? CU(cuMemRelease, block.second) : CUDA_SUCCESS;
    return first_error({first, give_mapping(use, block), early ? CUDA_SUCCESS : CU(cuMemRelease, block.second)});
}

// --- pools

CUresult take_from(const Use &use, Block &block, CUmemoryPool pool) {
    return CU(cuMemAllocFromPoolAsync, &block.pointer, block.bytes, pool, use.stream());
}

CUresult take_async(const Use &use, Block &block) {
    return CU(cuMemAllocAsync, &block.pointer, block.bytes, use.stream());
}
CUresult take_from_pool(const Use &use, Block &block) {
    return take_from(use, block, use.place.pools[use.random / 8 % Place::kPools]);
}
CUresult take_from_default_by_location(const Use &use, Block &block) {
    CUmemoryPool pool = nullptr;
    CUmemLocation where = on(use.place);
    if (const CUresult result = CU(cuMemGetDefaultMemPool, &pool, &where, CU_MEM_ALLOCATION_TYPE_PINNED))
        return no_refusal(result);
    return take_from(use, block, pool);
}
CUresult take_from_current_by_location(const Use &use, Block &block) {
    CUmemoryPool pool = nullptr;
    CUmemLocation where = on(use.place);
    if (const CUresult result = CU(cuMemGetMemPool, &pool, &where, CU_MEM_ALLOCATION_TYPE_PINNED))
        return no_refusal(result);
    return take_from(use, block, pool);
}

CUmemPoolProps own_pool(const Place &place, CUmemAllocationHandleType handle = CU_MEM_HANDLE_TYPE_NONE,
                        CUmemAllocationType type = CU_MEM_ALLOCATION_TYPE_PINNED) {
    return pool_on(CU_MEM_LOCATION_TYPE_DEVICE, place.device, handle, type);
}

// Allocates from a new pool, which is destroyed before or after its block.
CUresult take_from_new_pool(const Use &use, Block &block, CUmemPoolProps properties) {
    if (const CUresult made = CU(cuMemPoolCreate, &block.pool, &properties)) return no_refusal(made);
    const CUresult result = take_from(use, block, block.pool);
    return result == CUDA_SUCCESS ? result : refused(result, CU(cuMemPoolDestroy, block.pool));
}
CUresult take_from_own_pool(const Use &use, Block &block) {
    return take_from_new_pool(use, block, own_pool(use.place));
}
CUresult take_from_host_pool(const Use &use, Block &block) {
    block.bytes = block.bytes % (64 * kKiB) + 1;
    return take_from_new_pool(use, block, pool_on(CU_MEM_LOCATION_TYPE_HOST, 0));
}
CUresult take_from_managed_pool(const Use &use, Block &block) {
    return take_from_new_pool(use, block, own_pool(use.place, CU_MEM_HANDLE_TYPE_NONE, CU_MEM_ALLOCATION_TYPE_MANAGED));
}
CUresult give_own_pool(const Use &use, const Block &block) {
    const CUresult early = use.random % 2 ? CU(cuMemPoolDestroy, block.pool) : CUDA_SUCCESS;
    const Use then{use.calls, use.place, use.random / 2};
    const CUresult freed = free_in_stream(then, block);
    // Otherwise driver 580 may crash when a later pool is destroyed, without curb too (docs/results/driver-2026-11-23).
    if (use.random % 2) CU(cuStreamSynchronize, then.stream());
    return first_error({early, freed, use.random % 2 ? CUDA_SUCCESS : CU(cuMemPoolDestroy, block.pool)});
}

// The pool keeps what is freed, until it is trimmed.
CUresult take_from_trimmed_pool(const Use &use, Block &block) {
    if (const CUresult result = take_from_own_pool(use, block)) return result;
    std::uint64_t everything = ~0ULL;
    return no_refusal(CU(cuMemPoolSetAttribute, block.pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &everything));
}
CUresult give_trimmed_pool(const Use &use, const Block &block) {
    return first_error({free_in_stream(use, block), CU(cuStreamSynchronize, use.stream()),
                        CU(cuMemPoolTrimTo, block.pool, 0), CU(cuMemPoolDestroy, block.pool)});
}

CUresult take_imported_from_pool(const Use &use, Block &block) {
    if (const CUresult result =
            take_from_new_pool(use, block, own_pool(use.place, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)))
        return result;
    int file = -1;
    CUmemPoolPtrExportData data;
    const CUresult exported = first_error(
        {CU(cuMemPoolExportToShareableHandle, &file, block.pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
         CU(cuMemPoolExportPointer, &data, block.pointer)});
    const CUresult imported = first_error(
        {CU(cuMemPoolImportFromShareableHandle, &block.imported_pool,
            reinterpret_cast<void *>(static_cast<std::intptr_t>(file)), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
         CU(cuMemPoolImportPointer, &block.imported, block.imported_pool, &data)});
    close(file);
    return no_refusal(first_error({exported, imported}));
}
CUresult give_imported_from_pool(const Use &use, const Block &block) {
    const CUresult result =
        first_error({CU(cuMemFreeAsync, block.imported, use.stream()), CU(cuMemPoolDestroy, block.imported_pool)});
    return first_error({result, give_own_pool(use, block)});
}

// --- graphs

CUresult destroy_graph(const Use &use, const Block &block) {
    return first_error({CU(cuGraphExecDestroy, block.executable), CU(cuGraphDestroy, block.graph)});
}

// Makes a graph with a node that allocates and, with `freed`, a node that frees.
CUresult make_graph(const Use &use, Block &block, bool freed) {
    CUDA_MEM_ALLOC_NODE_PARAMS parameters = memory_node(block.bytes, use.place.device);
    CUgraphNode allocates = nullptr, frees = nullptr;
    CUresult result = first_error({CU(cuGraphCreate, &block.graph, 0),
                                   CU(cuGraphAddMemAllocNode, &allocates, block.graph, nullptr, 0, &parameters)});
    block.pointer = parameters.dptr;
    if (result == CUDA_SUCCESS && freed)
        result = CU(cuGraphAddMemFreeNode, &frees, block.graph, &allocates, 1, block.pointer);
    return no_refusal(result);
}

enum class Form { first, second, with_flags };
template <Form form>
CUresult instantiate(const Use &use, Block &block) {
    switch (form) {
        case Form::first:
            return no_refusal(CU(cuGraphInstantiate, &block.executable, block.graph, nullptr, nullptr, 0));
        case Form::second:
            return no_refusal(CU(cuGraphInstantiate_v2, &block.executable, block.graph, nullptr, nullptr, 0));
        case Form::with_flags: break;
    }
    return no_refusal(CU(cuGraphInstantiateWithFlags, &block.executable, block.graph, 0));
}

// The memory that the launch allocates belongs to the program.
template <Form form>
CUresult take_graph(const Use &use, Block &block) {
    if (const CUresult result = make_graph(use, block, false)) return result;
    if (const CUresult result = instantiate<form>(use, block)) return result;
    const CUresult result = CU(cuGraphLaunch, block.executable, use.stream());
    return result == CUDA_SUCCESS ? result : refused(result, destroy_graph(use, block));
}
CUresult give_graph(const Use &use, const Block &block) {
    return first_error(
        {use.random % 2 ? free_in_stream(use, block) : free_plainly(use, block), destroy_graph(use, block)});
}

// The device keeps the memory of graphs that have run, for the next ones, until it is trimmed.
CUresult give_graph_memory(const Use &use, const Block &) {
    return first_error({CU(cuStreamSynchronize, use.stream()), CU(cuDeviceGraphMemTrim, use.place.device)});
}
CUresult take_uploaded(const Use &use, Block &block) {
    if (const CUresult result = make_graph(use, block, true)) return result;
    if (const CUresult result = instantiate<Form::with_flags>(use, block)) return result;
    const CUresult result = CU(cuGraphUpload, block.executable, use.stream());
    return refused(result, first_error({CU(cuStreamSynchronize, use.stream()), destroy_graph(use, block)}));
}
CUresult take_uploaded_with_parameters(const Use &use, Block &block) {
    if (const CUresult result = make_graph(use, block, true)) return result;
    auto parameters = zeroed<CUDA_GRAPH_INSTANTIATE_PARAMS>();
    parameters.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
    parameters.hUploadStream = use.stream();
    if (const CUresult result = CU(cuGraphInstantiateWithParams, &block.executable, block.graph, &parameters))
        return refused(result, CU(cuGraphDestroy, block.graph));
    return no_refusal(first_error({CU(cuStreamSynchronize, use.stream()), destroy_graph(use, block)}));
}

CUresult begin_capture(const Use &use, Block &block) {
    return no_refusal(first_error({CU(cuStreamCreate, &block.stream, CU_STREAM_NON_BLOCKING),
                                   CU(cuStreamBeginCapture_v2, block.stream, CU_STREAM_CAPTURE_MODE_RELAXED)}));
}

CUresult take_captured(const Use &use, Block &block) {
    {
        const std::shared_lock lock(captures());
        if (const CUresult begun = begin_capture(use, block)) return begun;
        const CUresult taken = CU(cuMemAllocAsync, &block.pointer, block.bytes, block.stream);
        const CUresult ended = CU(cuStreamEndCapture, block.stream, &block.graph);
        if (taken != CUDA_SUCCESS || ended != CUDA_SUCCESS) {
            if (block.graph) CU(cuGraphDestroy, block.graph);
            return refused(taken, first_error({ended, CU(cuStreamDestroy_v2, block.stream)}));
        }
    }
    if (const CUresult result = instantiate<Form::with_flags>(use, block)) return result;
    const CUresult result = CU(cuGraphLaunch, block.executable, block.stream);
    const CUresult gone = CU(cuStreamDestroy_v2, block.stream);
    if (result == CUDA_SUCCESS) return no_refusal(gone);
    return refused(result, first_error({gone, destroy_graph(use, block)}));
}

// Allocates in a capture, which stays in progress.
CUresult capture_allocation(const Use &use, Block &block) {
    if (const CUresult result = begin_capture(use, block)) return result;
    return no_refusal(CU(cuMemAllocAsync, &block.pointer, block.bytes, block.stream));
}
CUresult take_open_capture(const Use &use, Block &block) {
    const std::shared_lock lock(captures());
    return capture_allocation(use, block);
}
// A capture fails once a stream that was forked into it is destroyed.
CUresult take_broken_capture(const Use &use, Block &block) {
    const std::shared_lock lock(captures());
    if (const CUresult result = capture_allocation(use, block)) return result;
    CUstream forked = nullptr;
    CUevent fork = nullptr;
    return no_refusal(first_error({CU(cuStreamCreate, &forked, CU_STREAM_NON_BLOCKING),
                                   CU(cuEventCreate, &fork, CU_EVENT_DISABLE_TIMING),
                                   CU(cuEventRecord, fork, block.stream), CU(cuStreamWaitEvent, forked, fork, 0),
                                   CU(cuEventDestroy_v2, fork), CU(cuStreamDestroy_v2, forked)}));
}
CUresult give_open_capture(const Use &use, const Block &block) {
    CUgraph graph = nullptr;
    if (use.random % 2 == 0) CU(cuStreamEndCapture, block.stream, &graph);  // else it ends with its stream
    return first_error({graph ? CU(cuGraphDestroy, graph) : CUDA_SUCCESS, CU(cuStreamDestroy_v2, block.stream)});
}

// --- contexts, stacks, code

// A context with a block and an array in it, which end with it or before.
CUresult take_context(const Use &use, Block &block) {
    if (const CUresult result = CU(cuCtxCreate_v2, &block.context, 0, use.place.device)) return result;
    CUresult result = take_plain(use, block);
    if (result == CUDA_SUCCESS) result = take_array(use, block);
    return refused(result,
                   result == CUDA_SUCCESS ? CU(cuCtxPopCurrent_v2, nullptr) : CU(cuCtxDestroy_v2, block.context));
}
CUresult give_context(const Use &use, const Block &block) {
    CUresult result = CU(cuCtxPushCurrent_v2, block.context);
    if (use.random % 2) result = first_error({result, free_plainly(use, block)});
    if (use.random / 2 % 2) result = first_error({result, destroy_array(use, block)});
    return first_error({result, CU(cuCtxDestroy_v2, block.context)});
}

// A green context, and a block allocated in it, which belongs to the primary context. The memory that the green context
// itself takes also stays until the primary context ends.
CUresult take_green(const Use &use, Block &block) {
    CUdevResource all{}, group{};
    unsigned groups = 1;
    CUdevResourceDesc description = nullptr;
    const CUresult described = first_error({CU(cuDeviceGetDevResource, use.place.device, &all, CU_DEV_RESOURCE_TYPE_SM),
                                            CU(cuDevSmResourceSplitByCount, &group, &groups, &all, nullptr, 0, 16),
                                            CU(cuDevResourceGenerateDesc, &description, &group, 1)});
    if (described != CUDA_SUCCESS) return no_refusal(described);
    if (const CUresult result =
            CU(cuGreenCtxCreate, &block.green, description, use.place.device, CU_GREEN_CTX_DEFAULT_STREAM))
        return result;
    CUcontext context = nullptr;
    if (const CUresult result =
            first_error({CU(cuCtxFromGreenCtx, &context, block.green), CU(cuCtxPushCurrent_v2, context)}))
        return no_refusal(result);
    const CUresult result = take_plain(use, block), popped = CU(cuCtxPopCurrent_v2, nullptr);
    const CUresult ended = result == CUDA_SUCCESS ? CUDA_SUCCESS : CU(cuGreenCtxDestroy, block.green);
    return refused(result, first_error({popped, ended}));
}
CUresult give_green(const Use &use, const Block &block) {
    return first_error({free_plainly(use, block), CU(cuGreenCtxDestroy, block.green)});
}

// Every thread that the device can hold has a stack. Sets `each` to the bytes to add to each stack, so that all
// together take at least the bytes of the block, and sets these to the sum.
constexpr std::size_t kDefaultStack = 1024;
CUresult divide(const Use &use, Block &block, Bytes &each) {
    int processors = 0;
    const CUresult result =
        CU(cuDeviceGetAttribute, &processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, use.place.device);
    const Bytes threads = 2048 * static_cast<Bytes>(processors > 0 ? processors : 1);
    each = round_up(block.bytes / threads, 256);
    block.bytes = each * threads;
    return no_refusal(result);
}
CUresult take_stack(const Use &use, Block &block) {
    Bytes more = 0;
    if (const CUresult result = divide(use, block, more)) return result;
    return CU(cuCtxSetLimit, CU_LIMIT_STACK_SIZE, kDefaultStack + more);
}
CUresult give_stack(const Use &use, const Block &) { return CU(cuCtxSetLimit, CU_LIMIT_STACK_SIZE, kDefaultStack); }

// A module with a global array.
CUresult take_module(const Use &use, Block &block) {
    block.bytes = round_up(block.bytes, kMiB);
    return CU(cuModuleLoadData, &block.module, global_ptx(block.bytes / kMiB).c_str());
}
CUresult unload_module(const Use &use, const Block &block) { return CU(cuModuleUnload, block.module); }

// The driver loads a library with the first query for its contents.
CUresult take_library(const Use &use, Block &block) {
    block.bytes = round_up(block.bytes, kMiB);
    const std::string image = global_ptx(block.bytes / kMiB);
    if (const CUresult result =
            CU(cuLibraryLoadData, &block.library, image.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0))
        return no_refusal(result);
    std::size_t bytes = 0;
    const CUresult result = CU(cuLibraryGetGlobal, &block.pointer, &bytes, block.library, "large");
    return result == CUDA_SUCCESS ? result : refused(result, CU(cuLibraryUnload, block.library));
}
CUresult unload_library(const Use &use, const Block &block) { return CU(cuLibraryUnload, block.library); }

// A launch takes local memory for every thread that the device can hold. It stays with the context.
CUresult take_launched(const Use &use, Block &block) {
    CUfunction kernel = nullptr;
    Bytes more = 0;
    if (const CUresult result = divide(use, block, more)) return result;
    if (const CUresult result = CU(cuModuleLoadData, &block.module, frame_ptx(kDefaultStack + more).c_str()))
        return result;
    CUresult result = CU(cuModuleGetFunction, &kernel, block.module, "frame");
    if (result == CUDA_SUCCESS)
        result = CU(cuLaunchKernel, kernel, 1, 1, 1, 1, 1, 1, 0, use.stream(), nullptr, nullptr);
    return result == CUDA_SUCCESS ? result : refused(result, unload_module(use, block));
}

// --- the table

constexpr Memory kPlain{.kind = "plain", .takes = Takes::granules, .ends_with = EndsWith::its_context};
constexpr Memory kKept{.kind = "plain", .takes = Takes::nothing, .ends_with = EndsWith::its_context};
constexpr Memory kManaged{
    .kind = "managed", .takes = Takes::granules, .ends_with = EndsWith::its_context, .trait = Trait::managed};
constexpr Memory kHost{.takes = Takes::nothing, .ends_with = EndsWith::its_context};
constexpr Memory kArray{.kind = "arrays", .takes = Takes::granules, .ends_with = EndsWith::its_context};
constexpr Memory kMapped{.kind = "vmm", .takes = Takes::bytes};
constexpr Memory kPooled{.kind = "pools", .takes = Takes::pool_units, .trait = Trait::stream_ordered};
constexpr Memory kHostPool{.takes = Takes::nothing};
constexpr Memory kManagedPool{.kind = "managed", .takes = Takes::pool_units, .trait = Trait::managed};
constexpr Memory kGraph{.kind = "graphs", .takes = Takes::pool_units};
constexpr Memory kUploaded{.kind = "graphs", .takes = Takes::pool_units, .shares = true};
constexpr Memory kContext{.takes = Takes::measured, .trait = Trait::context};
constexpr Memory kGreen{.kind = "plain", .takes = Takes::measured, .ends_with = EndsWith::primary_context};
constexpr Memory kStack{
    .takes = Takes::bytes, .ends_with = EndsWith::its_context, .trait = Trait::whole_context, .shares = true};
constexpr Memory kCode{.takes = Takes::measured, .ends_with = EndsWith::its_context, .trait = Trait::code};
constexpr Memory kLaunch{
    .takes = Takes::measured, .ends_with = EndsWith::its_context, .trait = Trait::code, .shares = true};
constexpr Memory kCapture{.takes = Takes::nothing, .ends_with = EndsWith::its_context, .trait = Trait::open_capture};

constexpr Family kFamilies[] = {
    {"plain", "cuMemAlloc_v2", kPlain, 80, take_plain, free_plainly},
    {"plain_freed_in_stream", "cuMemAlloc_v2", kPlain, 20, take_plain, free_in_stream},
    {"kept", "cuMemAlloc_v2", kKept, 10, take_kept, give_nothing},
    {"pitch", "cuMemAllocPitch_v2", kPlain, 20, take_pitch, free_plainly},
    {"managed", "cuMemAllocManaged", kManaged, 10, take_managed, free_plainly},
    {"host", "cuMemHostAlloc", kHost, 10, take_host, free_host},
    {"array", "cuArrayCreate_v2", kArray, 20, take_array, destroy_array},
    {"cube", "cuArray3DCreate_v2", kArray, 10, take_cube, destroy_array},
    {"mipmap", "cuMipmappedArrayCreate", kArray, 10, take_mipmap, destroy_mipmap},
    {"mapping", "cuMemCreate", kMapped, 20, take_mapping, give_mapping},
    {"mapping_alone", "cuMemMap", kMapped, 10, take_mapping_alone, unmap, "cuMemCreate"},
    {"mapping_imported", "cuMemImportFromShareableHandle", kMapped, 10, take_imported_mapping,
     give_mapping_of_two_handles, "cuMemCreate"},
    {"mapping_retained", "cuMemRetainAllocationHandle", kMapped, 10, take_retained_mapping, give_mapping_of_two_handles,
     "cuMemCreate"},
    {"async", "cuMemAllocAsync", kPooled, 60, take_async, free_either_way},
    {"pool", "cuMemAllocFromPoolAsync", kPooled, 40, take_from_pool, free_either_way},
    {"pool_by_location", "cuMemGetMemPool", kPooled, 5, take_from_current_by_location, free_either_way,
     "cuMemAllocFromPoolAsync"},
    {"default_pool_by_location", "cuMemGetDefaultMemPool", kPooled, 5, take_from_default_by_location, free_either_way,
     "cuMemAllocFromPoolAsync"},
    {"pool_of_its_own", "cuMemPoolDestroy", kPooled, 10, take_from_own_pool, give_own_pool, "cuMemAllocFromPoolAsync"},
    {"pool_trimmed", "cuMemPoolTrimTo", kPooled, 5, take_from_trimmed_pool, give_trimmed_pool,
     "cuMemAllocFromPoolAsync"},
    {"pool_imported", "cuMemPoolImportFromShareableHandle", kPooled, 10, take_imported_from_pool,
     give_imported_from_pool, "cuMemAllocFromPoolAsync"},
    {"pool_of_the_host", "cuMemAllocFromPoolAsync", kHostPool, 10, take_from_host_pool, give_own_pool},
    {"pool_managed", "cuMemAllocFromPoolAsync", kManagedPool, 10, take_from_managed_pool, give_own_pool},
    {"graph", "cuGraphLaunch", kGraph, 10, take_graph<Form::with_flags>, give_graph},
    {"graph_instantiated", "cuGraphInstantiate", kGraph, 2, take_graph<Form::first>, give_graph, "cuGraphLaunch"},
    {"graph_instantiated_v2", "cuGraphInstantiate_v2", kGraph, 2, take_graph<Form::second>, give_graph,
     "cuGraphLaunch"},
    {"graph_captured", "cuStreamEndCapture", kGraph, 10, take_captured, give_graph, "cuGraphLaunch"},
    {"graph_uploaded", "cuGraphUpload", kUploaded, 2, take_uploaded, give_graph_memory},
    {"graph_uploaded_with_parameters", "cuGraphInstantiateWithParams", kUploaded, 2, take_uploaded_with_parameters,
     give_graph_memory},
    {"context", "cuCtxCreate_v2", kContext, 10, take_context, give_context},
    {"green_context", "cuGreenCtxCreate", kGreen, 10, take_green, give_green, "cuMemAlloc_v2"},
    {"stack", "cuCtxSetLimit", kStack, 0, take_stack, give_stack},
    {"module", "cuModuleLoadData", kCode, 10, take_module, unload_module},
    {"library", "cuLibraryGetGlobal", kCode, 0, take_library, unload_library},
    {"launched_kernel", "cuLaunchKernel", kLaunch, 10, take_launched, unload_module},
    {"open_capture", "cuStreamBeginCapture_v2", kCapture, 1, take_open_capture, give_open_capture},
    {"broken_capture", "cuStreamBeginCapture_v2", kCapture, 1, take_broken_capture, give_open_capture},
};

}  // namespace

std::span<const Family> families() { return kFamilies; }

const Family *find(std::string_view name) {
    const auto *found =
        std::find_if(std::begin(kFamilies), std::end(kFamilies), [&](const Family &one) { return name == one.name; });
    return found == std::end(kFamilies) ? nullptr : found;
}

Bytes taken(const Family &family, Bytes bytes) {
    switch (family.memory.takes) {
        case Takes::bytes: return bytes;
        case Takes::granules: return round_up(bytes, 2 * kMiB);
        case Takes::pool_units: return round_up(bytes, 32 * kMiB);
        case Takes::nothing:
        case Takes::measured: break;
    }
    return 0;
}

Place make_place(Calls &calls, int device, bool with_pools) {
    Place place;
    place.device = device;
    const Use use{calls, place};
    CU(cuCtxGetCurrent, &place.context);
    CU(cuStreamCreate, &place.streams[1], CU_STREAM_NON_BLOCKING);
    std::fill(place.streams + 2, std::end(place.streams), place.streams[1]);
    if (!with_pools) return place;
    const CUmemPoolProps properties = own_pool(place);
    std::uint64_t everything = ~0ULL;
    CU(cuDeviceGetDefaultMemPool, &place.pools[0], device);
    CU(cuMemPoolCreate, &place.pools[1], &properties);
    CU(cuMemPoolSetAttribute, place.pools[1], CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &everything);
    CU(cuMemPoolCreate, &place.pools[2], &properties);
    return place;
}

void end_place(Calls &calls, const Place &place) {
    const Use use{calls, place};
    CU(cuStreamSynchronize, place.streams[1]);
    CU(cuStreamDestroy_v2, place.streams[1]);
    for (int i = 1; i < Place::kPools; ++i)
        if (place.pools[i]) CU(cuMemPoolDestroy, place.pools[i]);
}

std::shared_mutex &captures() {
    static auto &all = *new std::shared_mutex;
    return all;
}

}  // namespace families
