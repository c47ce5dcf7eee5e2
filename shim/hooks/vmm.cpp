// Virtual memory management (cuMemCreate, cuMemMap). Physical memory lives while a handle or a mapping refers to it.

#include "accounting/vmm.hpp"

#include "admission/admission.hpp"
#include "hooks/noted.hpp"
#include "trace/trace.hpp"

using namespace curb::shim;

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *properties,
                     unsigned long long flags) {
    const auto create = to_driver<&Driver::cuMemCreate>(handle, bytes, properties, flags);
    Device *device = handle && bytes && properties && properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE
                         ? devices::find(properties->location.id)
                         : nullptr;
    if (!device) return create();
    const Request request(*device, Kind::vmm, bytes, bytes, caller_match::Way::direct, Reuse::none());
    return charged(request, create, [&](Charge &charge) {
        if (vmm::created(*handle, *device, bytes)) {
            charge.keep(bytes);
            trace::allocated(*device, Kind::vmm, *handle, bytes, bytes);
            return CUDA_SUCCESS;
        }
        driver().cuMemRelease(*handle);
        return CUDA_ERROR_OUT_OF_MEMORY;
    });
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    if (!process::active()) return driver().cuMemRelease(handle);
    vmm::Release release(handle);
    const Ledger::Operation operation(release.ledger());
    const CUresult result = driver().cuMemRelease(handle);
    if (result == CUDA_SUCCESS) release.commit();
    return result;
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
    const CUresult result = driver().cuMemMap(address, bytes, offset, handle, flags);
    if (result != CUDA_SUCCESS || !process::active() || vmm::mapped(address, bytes, handle)) return result;
    ask_twice<&Driver::cuMemUnmap>(address, bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
    if (!process::active()) return driver().cuMemUnmap(address, bytes);
    vmm::Unmapping unmapping(address, bytes);
    const CUresult result = driver().cuMemUnmap(address, bytes);
    if (result == CUDA_SUCCESS) unmapping.commit();
    return result;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address) {
    return noted(driver().cuMemRetainAllocationHandle(handle, address),
                 [=] { vmm::retained(*handle, reinterpret_cast<CUdeviceptr>(address)); });
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *os_handle,
                                        CUmemAllocationHandleType type) {
    return noted(driver().cuMemImportFromShareableHandle(handle, os_handle, type), [=] {
        CUmemAllocationProp properties{};
        const bool on_device = driver().cuMemGetAllocationPropertiesFromHandle(&properties, *handle) == CUDA_SUCCESS &&
                               properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE;
        vmm::imported(*handle, on_device ? devices::find(properties.location.id) : nullptr);
    });
}

CUresult cuMemExportToShareableHandle(void *os_handle, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
    return noted(driver().cuMemExportToShareableHandle(os_handle, handle, type, flags), [=] { vmm::exported(handle); });
}
