// Devices: what they are called and what they can do. An H100, as far as anyone who allocates memory asks.
#include <cstdio>
#include <cstring>

#include "driver.hpp"
#include "identity.hpp"
#include "version.hpp"

namespace curb::sim {

SIM_CU(cuDriverGetVersion, (int *version), (version)) {
    if (!version) return CUDA_ERROR_INVALID_VALUE;
    *version = kCudaVersion;
    return CUDA_SUCCESS;
}

SIM_CU(cuDeviceGetCount, (int *count), (count)) {
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    *count = static_cast<int>(driver().devices.size());
    return CUDA_SUCCESS;
}

SIM_CU(cuDeviceGet, (CUdevice * device, int ordinal), (device, ordinal)) {
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    Device *found = nullptr;
    if (const CUresult error = find_device(ordinal, &found)) return error;
    *device = ordinal;
    return CUDA_SUCCESS;
}

SIM_CU(cuDeviceGetName, (char *name, int length, CUdevice device), (name, length, device)) {
    Device *found = nullptr;
    if (const CUresult error = find_device(device, &found)) return error;
    if (!name || length <= 0) return CUDA_ERROR_INVALID_VALUE;
    std::snprintf(name, static_cast<size_t>(length), "%s", kDeviceName);
    return CUDA_SUCCESS;
}

static CUresult uuid_of(CUuuid *uuid, CUdevice device, Uuid (*of_gpu)(int)) {
    Device *found = nullptr;
    if (const CUresult error = find_device(device, &found)) return error;
    if (!uuid) return CUDA_ERROR_INVALID_VALUE;
    const Uuid bytes = of_gpu(found->gpu);
    std::memcpy(uuid->bytes, bytes.data(), bytes.size());
    return CUDA_SUCCESS;
}

// Of an instance, the first tells its GPU's and the second its own (cuda.h).
SIM_CU(cuDeviceGetUuid, (CUuuid * uuid, CUdevice device), (uuid, device)) { return uuid_of(uuid, device, gpu_uuid); }
SIM_CU(cuDeviceGetUuid_v2, (CUuuid * uuid, CUdevice device), (uuid, device)) {
    return uuid_of(uuid, device, mig_mode() ? mig_uuid : gpu_uuid);
}

SIM_CU(cuDeviceTotalMem_v2, (size_t * bytes, CUdevice device), (bytes, device)) {
    Device *found = nullptr;
    if (const CUresult error = find_device(device, &found)) return error;
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    *bytes = memory_of(device).total;
    return CUDA_SUCCESS;
}

SIM_CU(cuDeviceGetAttribute, (int *value, CUdevice_attribute attribute, CUdevice device), (value, attribute, device)) {
    Device *found = nullptr;
    if (const CUresult error = find_device(device, &found)) return error;
    if (!value || attribute <= 0) return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
        case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
        case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *value = 32; break;
        case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = kMultiprocessors; break;
        case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: *value = kResidentThreads; break;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = 9; break;
        case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: *value = pci_bus(found->gpu); break;
        case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
        case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
        case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS:
        case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED: *value = 1; break;
        default: *value = 0; break;  // what is not modelled is not there
    }
    return CUDA_SUCCESS;
}

SIM_CU(cuDeviceGetPCIBusId, (char *text, int length, CUdevice device), (text, length, device)) {
    Device *found = nullptr;
    if (const CUresult error = find_device(device, &found)) return error;
    if (!text || length <= 0) return CUDA_ERROR_INVALID_VALUE;
    std::snprintf(text, static_cast<size_t>(length), "0000:%02X:00.0", static_cast<unsigned>(pci_bus(found->gpu)));
    return CUDA_SUCCESS;
}

SIM_CU(cuDeviceGetByPCIBusId, (CUdevice * device, const char *text), (device, text)) {
    if (!device || !text) return CUDA_ERROR_INVALID_VALUE;
    for (const Device &one : driver().devices) {
        if (!is_pci_bus_id(text, one.gpu)) continue;
        *device = one.index;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_DEVICE;
}

SIM_CU(cuDeviceCanAccessPeer, (int *can, CUdevice device, CUdevice peer), (can, device, peer)) {
    Device *found = nullptr;
    if (const CUresult error = find_device(device, &found)) return error;
    if (const CUresult error = find_device(peer, &found)) return error;
    if (!can) return CUDA_ERROR_INVALID_VALUE;
    *can = device != peer;
    return CUDA_SUCCESS;
}

}  // namespace curb::sim
