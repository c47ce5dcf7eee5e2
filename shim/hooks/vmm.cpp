// Virtual memory management (cuMemCreate, cuMemMap). Physical memory lives while a handle or a mapping refers to it.

#include "accounting/vmm.hpp"

#include <new>
#include <vector>

#include "admission/admission.hpp"
#include "blocks/answers.hpp"
#include "blocks/applies.hpp"
#include "driver/as_one_call.hpp"
#include "host/process_state.hpp"
#include "trace/trace.hpp"

namespace curb::shim {
namespace {

using vmm::Handles;

Handles handles() noexcept { return blocks::applies() ? Handles::curbs : Handles::drivers; }

// The memory is not moved from now on, since the driver does not say when the array no longer uses it.
template <auto Function>
CUresult map_array(CUarrayMapInfo *list, unsigned count, CUstream stream) {
    if (!process::active() || !list) return (driver().*Function)(list, count, stream);
    return as_one_call<Function>([&](const Driver &to) {
        try {
            std::vector<CUarrayMapInfo> translated(list, list + count);
            for (CUarrayMapInfo &one : translated) {
                if (one.memHandleType != CU_MEM_HANDLE_TYPE_GENERIC || one.memHandle.memHandle == 0) continue;
                const vmm::Named memory(one.memHandle.memHandle);
                memory.pin();
                one.memHandle.memHandle = memory.drivers();
            }
            return (to.*Function)(translated.data(), count, stream);
        } catch (const std::bad_alloc &) {  // not of all: a cancelled thread unwinds out of the driver
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    });
}

}  // namespace
}  // namespace curb::shim

using namespace curb::shim;

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *properties,
                     unsigned long long flags) {
    Device *device = handle && bytes && properties && properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE
                         ? devices::find(properties->location.id)
                         : nullptr;
    if (!device) return driver().cuMemCreate(handle, bytes, properties, flags);
    vmm::Handle made = 0;  // the driver's
    const auto create = [&] {
        return as_one_call<&Driver::cuMemCreate>([&](const Driver &to) {
            const CUresult result = to.cuMemCreate(&made, bytes, properties, flags);
            if (result != CUDA_SUCCESS) return result;
            const auto programs = vmm::created(made, *device, bytes, *properties, handles());
            if (!programs) {
                to.cuMemRelease(made);
                return CUDA_ERROR_OUT_OF_MEMORY;
            }
            *handle = *programs;
            return CUDA_SUCCESS;
        });
    };
    const Request request(*device, Kind::vmm, bytes, bytes, caller_match::Way::direct, Reuse::none());
    return charged(request, create, [&](Charge &charge) {
        charge.keep(bytes);
        trace::allocated(*device, Kind::vmm, made, bytes, bytes);
        return CUDA_SUCCESS;
    });
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    if (!process::active()) return driver().cuMemRelease(handle);
    return as_one_call<&Driver::cuMemRelease>([=](const Driver &to) {
        vmm::Release release(handle);
        const Ledger::Operation operation(release.ledger());
        const auto drivers = release.drivers();
        const CUresult result = drivers ? to.cuMemRelease(*drivers) : CUDA_SUCCESS;
        if (result == CUDA_SUCCESS) release.commit();
        return result;
    });
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
    if (!process::active()) return driver().cuMemMap(address, bytes, offset, handle, flags);
    return as_one_call<&Driver::cuMemMap>([=](const Driver &to) {
        const vmm::Named memory(handle);
        const CUresult result = to.cuMemMap(address, bytes, offset, memory.drivers(), flags);
        if (result != CUDA_SUCCESS || vmm::mapped(address, bytes, offset, memory)) return result;
        ask_twice([&] { return to.cuMemUnmap(address, bytes); });
        return CUDA_ERROR_OUT_OF_MEMORY;
    });
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
    if (!process::active()) return driver().cuMemUnmap(address, bytes);
    if (blocks::any_in(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
    return as_one_call<&Driver::cuMemUnmap>([=](const Driver &to) {
        vmm::Unmapping unmapping(address, bytes);
        const CUresult result = to.cuMemUnmap(address, bytes);
        if (result == CUDA_SUCCESS) unmapping.commit();
        return result;
    });
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access, size_t count) {
    if (!process::active()) return driver().cuMemSetAccess(address, bytes, access, count);
    if (blocks::any_in(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
    return as_one_call<&Driver::cuMemSetAccess>([=](const Driver &to) {
        const CUresult result = to.cuMemSetAccess(address, bytes, access, count);
        if (result == CUDA_SUCCESS) vmm::accessible(address, bytes, {access, count});
        return result;
    });
}

CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr address) {
    return blocks::access(flags, location, address);
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
    return blocks::any_in(address, bytes) ? CUDA_ERROR_INVALID_VALUE : driver().cuMemAddressFree(address, bytes);
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *pointer) {
    if (!process::active() || !handle) return driver().cuMemRetainAllocationHandle(handle, pointer);
    return as_one_call<&Driver::cuMemRetainAllocationHandle>([=](const Driver &to) {
        const auto address = reinterpret_cast<CUdeviceptr>(pointer);
        if (blocks::any_in(address)) return CUDA_ERROR_INVALID_VALUE;
        if (const auto curbs = vmm::retain(address)) {
            *handle = *curbs;
            return CUDA_SUCCESS;
        }
        const CUresult result = to.cuMemRetainAllocationHandle(handle, pointer);
        if (result == CUDA_SUCCESS) vmm::retained(*handle, address);
        return result;
    });
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties, CUmemGenericAllocationHandle handle) {
    if (!process::active()) return driver().cuMemGetAllocationPropertiesFromHandle(properties, handle);
    return as_one_call<&Driver::cuMemGetAllocationPropertiesFromHandle>([=](const Driver &to) {
        return to.cuMemGetAllocationPropertiesFromHandle(properties, vmm::Named(handle).drivers());
    });
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *os_handle,
                                        CUmemAllocationHandleType type) {
    if (!process::active()) return driver().cuMemImportFromShareableHandle(handle, os_handle, type);
    return as_one_call<&Driver::cuMemImportFromShareableHandle>([=](const Driver &to) {
        const CUresult result = to.cuMemImportFromShareableHandle(handle, os_handle, type);
        if (result != CUDA_SUCCESS) return result;
        CUmemAllocationProp properties{};
        const bool on_device = to.cuMemGetAllocationPropertiesFromHandle(&properties, *handle) == CUDA_SUCCESS &&
                               properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE;
        *handle = vmm::imported(*handle, on_device ? devices::find(properties.location.id) : nullptr, handles());
        return result;
    });
}

CUresult cuMemExportToShareableHandle(void *os_handle, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
    if (!process::active()) return driver().cuMemExportToShareableHandle(os_handle, handle, type, flags);
    return as_one_call<&Driver::cuMemExportToShareableHandle>([=](const Driver &to) {
        const CUresult result = to.cuMemExportToShareableHandle(os_handle, vmm::Named(handle).drivers(), type, flags);
        if (result == CUDA_SUCCESS) vmm::exported(handle);
        return result;
    });
}

CUresult cuMemMapArrayAsync(CUarrayMapInfo *list, unsigned count, CUstream stream) {
    return map_array<&Driver::cuMemMapArrayAsync>(list, count, stream);
}

CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo *list, unsigned count, CUstream stream) {
    return map_array<&Driver::cuMemMapArrayAsync_ptsz>(list, count, stream);
}

CUresult cuMulticastBindMem(CUmemGenericAllocationHandle object, size_t at, CUmemGenericAllocationHandle handle,
                            size_t offset, size_t bytes, unsigned long long flags) {
    if (!process::active()) return driver().cuMulticastBindMem(object, at, handle, offset, bytes, flags);
    return as_one_call<&Driver::cuMulticastBindMem>([=](const Driver &to) {
        const vmm::Named memory(handle);
        memory.pin();
        return to.cuMulticastBindMem(object, at, memory.drivers(), offset, bytes, flags);
    });
}

CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle object, size_t at, CUdeviceptr address, size_t bytes,
                             unsigned long long flags) {
    if (!process::active()) return driver().cuMulticastBindAddr(object, at, address, bytes, flags);
    return as_one_call<&Driver::cuMulticastBindAddr>([=](const Driver &to) {
        if (blocks::any_in(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
        vmm::pin_at(address);
        return to.cuMulticastBindAddr(object, at, address, bytes, flags);
    });
}
