// Calls on pools; stream-ordered allocation and free.
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
    return all<Pool>().add(std::move(pool));
}

CUdeviceptr allocate_from(Pool &pool, uint64_t bytes, Stream &stream) {
    if (pool.imported) throw CUDA_ERROR_INVALID_VALUE;
    if (stream.capture) return capture_allocation(stream, pool.properties, bytes);
    refuse_during_capture();
    submit(stream, CU_GRAPH_NODE_TYPE_MEM_ALLOC, [](Stream &) {});
    const CUdeviceptr start = pool.take(bytes, stream);
    add_allocation({.kind = Allocation::Kind::pool,
                    .start = start,
                    .bytes = bytes,
                    .device = pool.on_device() ? pool.properties.location.id : stream.device,
                    .context = stream.context,
                    .pool = &pool});
    return start;
}

// The current pool of a location, and the default one.
struct Slot {
    Pool *&current;
    Pool *standard;
};

Slot slot_of(const CUmemLocation *location, CUmemAllocationType type) {
    if (!location || type != CU_MEM_ALLOCATION_TYPE_PINNED) throw CUDA_ERROR_INVALID_VALUE;
    if (location->type == CU_MEM_LOCATION_TYPE_DEVICE) {
        Device *device = find_device(location->id);
        return {device->current_pool, device->default_pool};
    }
    if (location->type == CU_MEM_LOCATION_TYPE_INVALID) throw CUDA_ERROR_INVALID_VALUE;
    return {driver().current_host_pool, driver().default_host_pool};
}

// Returns the reuse policy of an attribute. Null if it is not one.
int *policy_of(Pool &pool, CUmemPool_attribute attribute) {
    switch (attribute) {
        case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES: return &pool.reuse_follow_events;
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC: return &pool.reuse_opportunistic;
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: return &pool.reuse_internal;
        default: return nullptr;
    }
}

}  // namespace

void make_default_pools() {
    for (Device &device : driver().devices)
        device.default_pool = device.current_pool =
            add_default_pool({.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device.index});
    driver().default_host_pool = driver().current_host_pool =
        add_default_pool({.type = CU_MEM_LOCATION_TYPE_HOST, .id = 0});
}

SIM_CU_STREAM(11020, cuMemAllocAsync, (CUdeviceptr * start, size_t bytes, CUstream handle), (start, bytes, handle)) {
    if (!start) throw CUDA_ERROR_INVALID_VALUE;
    Stream *stream = find_stream(handle);
    *start = 0;
    if (!bytes) return;  // unlike cuMemAlloc (measured on an H200)
    *start = allocate_from(*device_at(stream->device).current_pool, bytes, *stream);
}

SIM_CU_STREAM(11020, cuMemAllocFromPoolAsync,
              (CUdeviceptr * start, size_t bytes, CUmemoryPool pool_handle, CUstream handle),
              (start, bytes, pool_handle, handle)) {
    if (!start || !bytes) throw CUDA_ERROR_INVALID_VALUE;
    Pool *pool = all<Pool>().at(pool_handle);
    Stream *stream = find_stream(handle);
    *start = allocate_from(*pool, bytes, *stream);
}

SIM_CU_STREAM(11020, cuMemFreeAsync, (CUdeviceptr start, CUstream handle), (start, handle)) {
    Stream *stream = find_stream(handle);
    if (!start) return;
    if (stream->capture) return capture_free(*stream, start);
    const Allocation *found = find_allocation(start);
    if (!found) throw CUDA_ERROR_INVALID_VALUE;
    submit(*stream, CU_GRAPH_NODE_TYPE_MEM_FREE, [](Stream &) {});
    switch (found->kind) {
        case Allocation::Kind::pool: free_pool_allocation(start, stream); return;
        case Allocation::Kind::graph: free_graph_allocation(start); return;
        case Allocation::Kind::pool_import: free_foreign(*found); return;
        case Allocation::Kind::plain:
            driver().late_frees.push_back({found->context, start, stream->id, driver().last_ticket});
            driver().allocations.erase(start);
            return;
        case Allocation::Kind::managed: throw CUDA_ERROR_NOT_SUPPORTED;
        default: throw CUDA_ERROR_INVALID_VALUE;
    }
}

SIM_CU(11020, cuMemPoolCreate, (CUmemoryPool * pool, const CUmemPoolProps *properties), (pool, properties)) {
    if (!pool || !properties) throw CUDA_ERROR_INVALID_VALUE;
    const CUmemLocation &location = properties->location;
    if (properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED &&
        properties->allocType != CU_MEM_ALLOCATION_TYPE_MANAGED)
        throw CUDA_ERROR_INVALID_VALUE;
    if (properties->handleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) throw CUDA_ERROR_INVALID_VALUE;
    if (location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
        find_device(location.id);
    } else if (location.type < CU_MEM_LOCATION_TYPE_HOST || location.type > CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT) {
        throw CUDA_ERROR_INVALID_VALUE;
    }
    *pool = all<Pool>().add(std::make_unique<Pool>(*properties))->handle;
}

// The pool lives on, without its handle, until its allocations are freed.
SIM_CU(11020, cuMemPoolDestroy, (CUmemoryPool handle), (handle)) {
    Pool *pool = all<Pool>().at(handle);
    if (pool->is_default) throw CUDA_ERROR_INVALID_VALUE;
    for (Device &device : driver().devices)
        if (device.current_pool == pool) device.current_pool = device.default_pool;
    if (driver().current_host_pool == pool) driver().current_host_pool = driver().default_host_pool;
    std::unique_ptr<Pool> owned = all<Pool>().release(handle);
    if (!owned->live.empty()) driver().dying_pools.push_back(std::move(owned));
}

SIM_CU(11020, cuMemPoolTrimTo, (CUmemoryPool handle, size_t keep), (handle, keep)) {
    Pool *pool = all<Pool>().at(handle);
    refuse_during_capture();
    pool->trim(keep);
}

SIM_CU(11020, cuMemPoolSetAttribute, (CUmemoryPool handle, CUmemPool_attribute attribute, void *value),
       (handle, attribute, value)) {
    Pool *pool = all<Pool>().at(handle);
    if (!value) throw CUDA_ERROR_INVALID_VALUE;
    refuse_during_capture();
    if (int *policy = policy_of(*pool, attribute)) {
        *policy = *static_cast<int *>(value);
        return;
    }
    const uint64_t figure = *static_cast<uint64_t *>(value);
    const bool is_high = attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH || attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH;
    if (is_high && figure) throw CUDA_ERROR_INVALID_VALUE;  // both can only be reset
    switch (attribute) {
        case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: pool->release_threshold = figure; return;
        case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: pool->reserved_high = pool->reserved; return;
        case CU_MEMPOOL_ATTR_USED_MEM_HIGH: pool->used_high = pool->used; return;
        default: throw CUDA_ERROR_INVALID_VALUE;
    }
}

SIM_CU(11020, cuMemPoolGetAttribute, (CUmemoryPool handle, CUmemPool_attribute attribute, void *value),
       (handle, attribute, value)) {
    Pool *pool = all<Pool>().at(handle);
    if (!value) throw CUDA_ERROR_INVALID_VALUE;
    refuse_during_capture();
    if (const int *policy = policy_of(*pool, attribute)) {
        *static_cast<int *>(value) = *policy;
        return;
    }
    uint64_t &figure = *static_cast<uint64_t *>(value);
    switch (attribute) {
        case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: figure = pool->release_threshold; return;
        case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: figure = pool->reserved; return;
        case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: figure = pool->reserved_high; return;
        case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: figure = pool->used; return;
        case CU_MEMPOOL_ATTR_USED_MEM_HIGH: figure = pool->used_high; return;
        default: throw CUDA_ERROR_INVALID_VALUE;
    }
}

SIM_CU(11020, cuMemPoolSetAccess, (CUmemoryPool handle, const CUmemAccessDesc *access, size_t count),
       (handle, access, count)) {
    Pool *pool = all<Pool>().at(handle);
    if (!access || !count) throw CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; ++i) {
        if (access[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE) throw CUDA_ERROR_INVALID_VALUE;
        find_device(access[i].location.id);
    }
    for (size_t i = 0; i < count; ++i) pool->access[access[i].location.id] = access[i].flags;
}

SIM_CU(11020, cuMemPoolGetAccess, (CUmemAccess_flags * flags, CUmemoryPool handle, CUmemLocation *location),
       (flags, handle, location)) {
    Pool *pool = all<Pool>().at(handle);
    if (!flags || !location || location->type != CU_MEM_LOCATION_TYPE_DEVICE) throw CUDA_ERROR_INVALID_VALUE;
    const auto set = pool->access.find(location->id);
    *flags = set != pool->access.end()   ? set->second
             : pool->is_of(location->id) ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                         : CU_MEM_ACCESS_FLAGS_PROT_NONE;
}

static void tell_pool(CUmemoryPool *pool, CUdevice device, Pool *Device::*which) {
    Device *found = find_device(device);
    if (!pool) throw CUDA_ERROR_INVALID_VALUE;
    *pool = (found->*which)->handle;
}

SIM_CU(11020, cuDeviceGetDefaultMemPool, (CUmemoryPool * pool, CUdevice device), (pool, device)) {
    tell_pool(pool, device, &Device::default_pool);
}
SIM_CU(11020, cuDeviceGetMemPool, (CUmemoryPool * pool, CUdevice device), (pool, device)) {
    tell_pool(pool, device, &Device::current_pool);
}

SIM_CU(11020, cuDeviceSetMemPool, (CUdevice device, CUmemoryPool handle), (device, handle)) {
    Device *found = find_device(device);
    Pool *pool = all<Pool>().at(handle);
    if (pool->imported || !pool->is_of(device)) throw CUDA_ERROR_INVALID_VALUE;
    found->current_pool = pool;
}

SIM_CU(13000, cuMemGetDefaultMemPool, (CUmemoryPool * pool, CUmemLocation *location, CUmemAllocationType type),
       (pool, location, type)) {
    if (!pool) throw CUDA_ERROR_INVALID_VALUE;
    *pool = slot_of(location, type).standard->handle;
}

SIM_CU(13000, cuMemGetMemPool, (CUmemoryPool * pool, CUmemLocation *location, CUmemAllocationType type),
       (pool, location, type)) {
    if (!pool) throw CUDA_ERROR_INVALID_VALUE;
    *pool = slot_of(location, type).current->handle;
}

SIM_CU(13000, cuMemSetMemPool, (CUmemLocation * location, CUmemAllocationType type, CUmemoryPool handle),
       (location, type, handle)) {
    const Slot slot = slot_of(location, type);
    Pool *pool = all<Pool>().at(handle);
    const bool device = location->type == CU_MEM_LOCATION_TYPE_DEVICE;
    if (pool->imported || (device ? !pool->is_of(location->id) : pool->on_device())) throw CUDA_ERROR_INVALID_VALUE;
    slot.current = pool;
}

}  // namespace curb::sim
