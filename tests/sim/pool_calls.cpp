// The calls on pools, and stream-ordered allocation and free.
#include "driver.hpp"
#include "sharing.hpp"

namespace curb::sim {

namespace {

Pool *add_default_pool(CUmemLocation location) {
    auto pool = std::make_unique<Pool>(CUmemPoolProps{.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                                      .handleTypes = CU_MEM_HANDLE_TYPE_NONE,
                                                      .location = location,
                                                      .win32SecurityAttributes = nullptr,
                                                      .maxSize = 0,
                                                      .usage = 0,
                                                      .reserved = {}});
    pool->is_default = true;
    return driver().pools.add(std::move(pool));
}

CUresult find_pool(CUmemoryPool handle, Pool **pool) {
    *pool = driver().pools.find(handle);
    return *pool ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult allocate_from(Pool &pool, uint64_t bytes, Stream &stream, CUdeviceptr *start) {
    if (pool.imported) return CUDA_ERROR_INVALID_VALUE;
    if (stream.capture) return capture_allocation(stream, pool.properties, bytes, start);
    if (const CUresult error = refuse_during_capture()) return error;
    if (const CUresult error = submit(stream, CU_GRAPH_NODE_TYPE_MEM_ALLOC, [] {})) return error;
    if (const CUresult error = pool.take(bytes, stream, start)) return error;
    add_allocation({.kind = Allocation::Kind::pool,
                    .start = *start,
                    .bytes = bytes,
                    .device = pool.on_device() ? pool.properties.location.id : stream.device,
                    .context = stream.context,
                    .pool = &pool});
    return CUDA_SUCCESS;
}

CUresult current_slot(const CUmemLocation *location, CUmemAllocationType type, Pool ***current, Pool **standard) {
    if (!location || type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
    if (location->type == CU_MEM_LOCATION_TYPE_DEVICE) {
        Device *device = nullptr;
        if (const CUresult error = find_device(location->id, &device)) return error;
        *current = &device->current_pool;
        *standard = device->default_pool;
        return CUDA_SUCCESS;
    }
    if (location->type == CU_MEM_LOCATION_TYPE_INVALID) return CUDA_ERROR_INVALID_VALUE;
    *current = &driver().current_host_pool;
    *standard = driver().default_host_pool;
    return CUDA_SUCCESS;
}

}  // namespace

void make_default_pools() {
    for (Device &device : driver().devices)
        device.default_pool = device.current_pool =
            add_default_pool({.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device.index});
    driver().default_host_pool = driver().current_host_pool =
        add_default_pool({.type = CU_MEM_LOCATION_TYPE_HOST, .id = 0});
}

SIM_CU_STREAM(cuMemAllocAsync, (CUdeviceptr * start, size_t bytes, CUstream handle), (start, bytes, handle)) {
    if (!start) return CUDA_ERROR_INVALID_VALUE;
    Stream *stream = nullptr;
    if (const CUresult error = find_stream(handle, &stream)) return error;
    *start = 0;
    if (!bytes) return CUDA_SUCCESS;  // unlike cuMemAlloc (measured on an H200)
    return allocate_from(*device_at(stream->device).current_pool, bytes, *stream, start);
}

SIM_CU_STREAM(cuMemAllocFromPoolAsync, (CUdeviceptr * start, size_t bytes, CUmemoryPool pool_handle, CUstream handle),
              (start, bytes, pool_handle, handle)) {
    if (!start || !bytes) return CUDA_ERROR_INVALID_VALUE;
    Stream *stream = nullptr;
    Pool *pool = nullptr;
    if (const CUresult error = find_pool(pool_handle, &pool)) return error;
    if (const CUresult error = find_stream(handle, &stream)) return error;
    return allocate_from(*pool, bytes, *stream, start);
}

SIM_CU_STREAM(cuMemFreeAsync, (CUdeviceptr start, CUstream handle), (start, handle)) {
    Stream *stream = nullptr;
    if (const CUresult error = find_stream(handle, &stream)) return error;
    if (!start) return CUDA_SUCCESS;
    if (stream->capture) return capture_free(*stream, start);
    const Allocation *found = find_allocation(start);
    if (!found) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult error = submit(*stream, CU_GRAPH_NODE_TYPE_MEM_FREE, [] {})) return error;
    switch (found->kind) {
        case Allocation::Kind::pool: free_pool_allocation(start, stream); return CUDA_SUCCESS;
        case Allocation::Kind::graph: free_graph_allocation(start); return CUDA_SUCCESS;
        case Allocation::Kind::pool_import: free_foreign(*found); return CUDA_SUCCESS;
        case Allocation::Kind::plain:
            driver().late_frees.push_back({found->context, start, stream->id, driver().last_ticket});
            driver().allocations.erase(start);
            return CUDA_SUCCESS;
        case Allocation::Kind::managed: return CUDA_ERROR_NOT_SUPPORTED;
        default: return CUDA_ERROR_INVALID_VALUE;
    }
}

SIM_CU(cuMemPoolCreate, (CUmemoryPool * pool, const CUmemPoolProps *properties), (pool, properties)) {
    if (!pool || !properties) return CUDA_ERROR_INVALID_VALUE;
    const CUmemLocation &location = properties->location;
    if (properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED &&
        properties->allocType != CU_MEM_ALLOCATION_TYPE_MANAGED)
        return CUDA_ERROR_INVALID_VALUE;
    if (properties->handleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
    if (location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
        Device *device = nullptr;
        if (const CUresult error = find_device(location.id, &device)) return error;
    } else if (location.type < CU_MEM_LOCATION_TYPE_HOST || location.type > CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *pool = driver().pools.add(std::make_unique<Pool>(*properties))->handle;
    return CUDA_SUCCESS;
}

// The pool lives on, without its handle, until its allocations are freed.
SIM_CU(cuMemPoolDestroy, (CUmemoryPool handle), (handle)) {
    Pool *pool = nullptr;
    if (const CUresult error = find_pool(handle, &pool)) return error;
    if (pool->is_default) return CUDA_ERROR_INVALID_VALUE;
    for (Device &device : driver().devices)
        if (device.current_pool == pool) device.current_pool = device.default_pool;
    if (driver().current_host_pool == pool) driver().current_host_pool = driver().default_host_pool;
    std::unique_ptr<Pool> owned = driver().pools.release(handle);
    if (!owned->live.empty()) driver().dying_pools.push_back(std::move(owned));
    return CUDA_SUCCESS;
}

SIM_CU(cuMemPoolTrimTo, (CUmemoryPool handle, size_t keep), (handle, keep)) {
    Pool *pool = nullptr;
    if (const CUresult error = find_pool(handle, &pool)) return error;
    if (const CUresult error = refuse_during_capture()) return error;
    pool->trim(keep);
    return CUDA_SUCCESS;
}

SIM_CU(cuMemPoolSetAttribute, (CUmemoryPool handle, CUmemPool_attribute attribute, void *value),
       (handle, attribute, value)) {
    Pool *pool = nullptr;
    if (const CUresult error = find_pool(handle, &pool)) return error;
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult error = refuse_during_capture()) return error;
    switch (attribute) {
        case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
            pool->reuse_follow_events = *static_cast<int *>(value);
            break;
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC: pool->reuse_opportunistic = *static_cast<int *>(value); break;
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
            pool->reuse_internal = *static_cast<int *>(value);
            break;
        case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: pool->release_threshold = *static_cast<uint64_t *>(value); break;
        case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:  // both can only be reset
            if (*static_cast<uint64_t *>(value)) return CUDA_ERROR_INVALID_VALUE;
            pool->reserved_high = pool->reserved;
            break;
        case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
            if (*static_cast<uint64_t *>(value)) return CUDA_ERROR_INVALID_VALUE;
            pool->used_high = pool->used;
            break;
        default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

SIM_CU(cuMemPoolGetAttribute, (CUmemoryPool handle, CUmemPool_attribute attribute, void *value),
       (handle, attribute, value)) {
    Pool *pool = nullptr;
    if (const CUresult error = find_pool(handle, &pool)) return error;
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult error = refuse_during_capture()) return error;
    switch (attribute) {
        case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
            *static_cast<int *>(value) = pool->reuse_follow_events;
            break;
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC: *static_cast<int *>(value) = pool->reuse_opportunistic; break;
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
            *static_cast<int *>(value) = pool->reuse_internal;
            break;
        case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: *static_cast<uint64_t *>(value) = pool->release_threshold; break;
        case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: *static_cast<uint64_t *>(value) = pool->reserved; break;
        case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: *static_cast<uint64_t *>(value) = pool->reserved_high; break;
        case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: *static_cast<uint64_t *>(value) = pool->used; break;
        case CU_MEMPOOL_ATTR_USED_MEM_HIGH: *static_cast<uint64_t *>(value) = pool->used_high; break;
        default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

SIM_CU(cuMemPoolSetAccess, (CUmemoryPool handle, const CUmemAccessDesc *access, size_t count),
       (handle, access, count)) {
    Pool *pool = nullptr;
    if (const CUresult error = find_pool(handle, &pool)) return error;
    if (!access || !count) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; ++i) {
        Device *device = nullptr;
        if (access[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
        if (const CUresult error = find_device(access[i].location.id, &device)) return error;
    }
    for (size_t i = 0; i < count; ++i) pool->access[access[i].location.id] = access[i].flags;
    return CUDA_SUCCESS;
}

SIM_CU(cuMemPoolGetAccess, (CUmemAccess_flags * flags, CUmemoryPool handle, CUmemLocation *location),
       (flags, handle, location)) {
    Pool *pool = nullptr;
    if (const CUresult error = find_pool(handle, &pool)) return error;
    if (!flags || !location || location->type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
    const auto set = pool->access.find(location->id);
    *flags = set != pool->access.end()   ? set->second
             : pool->is_of(location->id) ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                         : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}

static CUresult tell_pool(CUmemoryPool *pool, CUdevice device, Pool *Device::*which) {
    Device *found = nullptr;
    if (const CUresult error = find_device(device, &found)) return error;
    if (!pool) return CUDA_ERROR_INVALID_VALUE;
    *pool = (found->*which)->handle;
    return CUDA_SUCCESS;
}

SIM_CU(cuDeviceGetDefaultMemPool, (CUmemoryPool * pool, CUdevice device), (pool, device)) {
    return tell_pool(pool, device, &Device::default_pool);
}
SIM_CU(cuDeviceGetMemPool, (CUmemoryPool * pool, CUdevice device), (pool, device)) {
    return tell_pool(pool, device, &Device::current_pool);
}

SIM_CU(cuDeviceSetMemPool, (CUdevice device, CUmemoryPool handle), (device, handle)) {
    Device *found = nullptr;
    Pool *pool = nullptr;
    if (const CUresult error = find_device(device, &found)) return error;
    if (const CUresult error = find_pool(handle, &pool)) return error;
    if (pool->imported || !pool->is_of(device)) return CUDA_ERROR_INVALID_VALUE;
    found->current_pool = pool;
    return CUDA_SUCCESS;
}

SIM_CU(cuMemGetDefaultMemPool, (CUmemoryPool * pool, CUmemLocation *location, CUmemAllocationType type),
       (pool, location, type)) {
    Pool **current = nullptr, *standard = nullptr;
    if (!pool) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult error = current_slot(location, type, &current, &standard)) return error;
    *pool = standard->handle;
    return CUDA_SUCCESS;
}

SIM_CU(cuMemGetMemPool, (CUmemoryPool * pool, CUmemLocation *location, CUmemAllocationType type),
       (pool, location, type)) {
    Pool **current = nullptr, *standard = nullptr;
    if (!pool) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult error = current_slot(location, type, &current, &standard)) return error;
    *pool = (*current)->handle;
    return CUDA_SUCCESS;
}

SIM_CU(cuMemSetMemPool, (CUmemLocation * location, CUmemAllocationType type, CUmemoryPool handle),
       (location, type, handle)) {
    Pool **current = nullptr, *standard = nullptr, *pool = nullptr;
    if (const CUresult error = current_slot(location, type, &current, &standard)) return error;
    if (const CUresult error = find_pool(handle, &pool)) return error;
    const bool device = location->type == CU_MEM_LOCATION_TYPE_DEVICE;
    if (pool->imported || (device ? !pool->is_of(location->id) : pool->on_device())) return CUDA_ERROR_INVALID_VALUE;
    *current = pool;
    return CUDA_SUCCESS;
}

}  // namespace curb::sim
