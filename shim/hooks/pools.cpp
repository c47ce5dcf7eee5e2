// Pools: which device their memory is on, and when it is credited.

#include "pools/pools.hpp"

#include "accounting/reconcile.hpp"
#include "host/process_state.hpp"

namespace curb::shim {
namespace {

// Returns the device at this location. nullptr for host memory, which is not charged.
Device *device_at(const CUmemLocation &location) noexcept {
    return location.type == CU_MEM_LOCATION_TYPE_DEVICE ? devices::find(location.id) : nullptr;
}

Kind kind_of(CUmemAllocationType type) noexcept {
    return type == CU_MEM_ALLOCATION_TYPE_MANAGED ? Kind::managed : Kind::pools;
}

CUresult note_pool_at(CUresult result, const CUmemoryPool *pool, const CUmemLocation *location,
                      CUmemAllocationType type) noexcept {
    if (result == CUDA_SUCCESS && process::active() && pool && location)
        pools::note(*pool, device_at(*location), kind_of(type));
    return result;
}

}  // namespace
}  // namespace curb::shim

using namespace curb::shim;

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties) {
    const CUresult result = driver().cuMemPoolCreate(pool, properties);
    if (result == CUDA_SUCCESS && process::active())
        pools::made(*pool, device_at(properties->location), kind_of(properties->allocType));
    return result;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    // The driver refuses a default pool, which must keep its memory: Removal trims.
    if (!process::active() || pools::device_of_default(pool)) return driver().cuMemPoolDestroy(pool);
    CUresult result = CUDA_SUCCESS;
    Device *device = nullptr;
    {
        pools::Removal removal(pool);
        result = driver().cuMemPoolDestroy(pool);
        if (result == CUDA_SUCCESS) device = removal.destroyed();
    }
    if (device) reconcile(*device);
    return result;
}

CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
    const CUresult result = driver().cuDeviceSetMemPool(device, pool);
    pools::current_changed();
    return result;
}

CUresult cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool) {
    const CUresult result = driver().cuMemSetMemPool(location, type, pool);
    pools::current_changed();
    return result;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
    const CUresult result = driver().cuMemPoolTrimTo(pool, keep);
    const pools::Pool *known = result == CUDA_SUCCESS && process::active() ? pools::known(pool) : nullptr;
    if (known && known->device) pools::reconcile(*known->device);
    return result;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
    const auto call = to_driver<&Driver::cuMemPoolSetAttribute>(pool, attribute, value);
    if (attribute != CU_MEMPOOL_ATTR_RELEASE_THRESHOLD || !value || !process::active()) return call();
    pools::Pool *known = pools::known(pool);
    if (!known) return call();
    const CUresult result = known->threshold.set(*static_cast<std::uint64_t *>(value), call);
    known->threshold_changed();
    return result;
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
    const auto call = to_driver<&Driver::cuMemPoolGetAttribute>(pool, attribute, value);
    if (attribute != CU_MEMPOOL_ATTR_RELEASE_THRESHOLD || !value || !process::active()) return call();
    pools::Pool *known = pools::known(pool);
    return known ? known->threshold.get(*static_cast<std::uint64_t *>(value), call) : call();
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type) {
    return note_pool_at(driver().cuMemGetDefaultMemPool(pool, location, type), pool, location, type);
}

CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type) {
    return note_pool_at(driver().cuMemGetMemPool(pool, location, type), pool, location, type);
}

CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *handle, CUmemAllocationHandleType type,
                                            unsigned long long flags) {
    const CUresult result = driver().cuMemPoolImportFromShareableHandle(pool, handle, type, flags);
    if (result == CUDA_SUCCESS && process::active() && pool) {
        pools::made(*pool, nullptr, Kind::pools);
        pools::share(*pool);
    }
    return result;
}

CUresult cuMemPoolExportToShareableHandle(void *handle, CUmemoryPool pool, CUmemAllocationHandleType type,
                                          unsigned long long flags) {
    const CUresult result = driver().cuMemPoolExportToShareableHandle(handle, pool, type, flags);
    if (result == CUDA_SUCCESS && process::active()) pools::share(pool);
    return result;
}

CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *data, CUdeviceptr pointer) {
    const CUresult result = driver().cuMemPoolExportPointer(data, pointer);
    CUmemoryPool pool = nullptr;
    if (result == CUDA_SUCCESS && process::active() &&
        ask_twice<&Driver::cuPointerGetAttribute>(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, pointer) == CUDA_SUCCESS)
        pools::exported_block(pool, *data);
    return result;
}

CUresult cuMemPoolImportPointer(CUdeviceptr *pointer, CUmemoryPool pool, CUmemPoolPtrExportData *data) {
    const CUresult result = driver().cuMemPoolImportPointer(pointer, pool, data);
    if (result == CUDA_SUCCESS && process::active()) pools::imported_block(pool, *data, *pointer);
    return result;
}
