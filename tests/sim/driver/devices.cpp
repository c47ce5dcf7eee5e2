// Names and attributes of devices: those of an H100, as far as programs that allocate memory ask for them.
#include <cstdio>
#include <cstring>

#include "driver.hpp"
#include "identity.hpp"
#include "version.hpp"

namespace curb::sim {

SIM_CU(2020, cuDriverGetVersion, (int *version), (version)) {
    if (!version) throw CUDA_ERROR_INVALID_VALUE;
    *version = kCudaVersion;
}

SIM_CU(2000, cuDeviceGetCount, (int *count), (count)) {
    if (!count) throw CUDA_ERROR_INVALID_VALUE;
    *count = static_cast<int>(driver().devices.size());
}

SIM_CU(2000, cuDeviceGet, (CUdevice * device, int ordinal), (device, ordinal)) {
    if (!device) throw CUDA_ERROR_INVALID_VALUE;
    find_device(ordinal);
    *device = ordinal;
}

SIM_CU(2000, cuDeviceGetName, (char *name, int length, CUdevice device), (name, length, device)) {
    find_device(device);
    if (!name || length <= 0) throw CUDA_ERROR_INVALID_VALUE;
    std::snprintf(name, static_cast<size_t>(length), "%s", device_name());
}

static void uuid_of(CUuuid *uuid, CUdevice device, Uuid (*of_gpu)(int)) {
    Device *found = find_device(device);
    if (!uuid) throw CUDA_ERROR_INVALID_VALUE;
    const Uuid bytes = of_gpu(found->gpu);
    std::memcpy(uuid->bytes, bytes.data(), bytes.size());
}

// For an instance, the first form returns the UUID of its GPU, the second its own (cuda.h).
SIM_CU(9020, cuDeviceGetUuid, (CUuuid * uuid, CUdevice device), (uuid, device)) { uuid_of(uuid, device, gpu_uuid); }
SIM_CU(11040, cuDeviceGetUuid_v2, (CUuuid * uuid, CUdevice device), (uuid, device)) {
    uuid_of(uuid, device, mig_mode() ? mig_uuid : gpu_uuid);
}

SIM_CU(3020, cuDeviceTotalMem_v2, (size_t * bytes, CUdevice device), (bytes, device)) {
    find_device(device);
    if (!bytes) throw CUDA_ERROR_INVALID_VALUE;
    *bytes = memory_of(device).total;
}

SIM_CU(2000, cuDeviceGetAttribute, (int *value, CUdevice_attribute attribute, CUdevice device),
       (value, attribute, device)) {
    Device *found = find_device(device);
    if (!value || attribute <= 0) throw CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
        case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
        case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *value = 32; break;
        case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = kMultiprocessors; break;
        case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: *value = kResidentThreads; break;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = 9; break;
        case CU_DEVICE_ATTRIBUTE_INTEGRATED: *value = is_unified(); break;
        case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: *value = pci_bus(found->gpu); break;
        case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
        case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
        case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS:
        case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED: *value = 1; break;
        default: *value = 0; break;  // features that are not simulated are reported absent
    }
}

SIM_CU(4010, cuDeviceGetPCIBusId, (char *text, int length, CUdevice device), (text, length, device)) {
    Device *found = find_device(device);
    if (!text || length <= 0) throw CUDA_ERROR_INVALID_VALUE;
    std::snprintf(text, static_cast<size_t>(length), "0000:%02X:00.0", static_cast<unsigned>(pci_bus(found->gpu)));
}

SIM_CU(4010, cuDeviceGetByPCIBusId, (CUdevice * device, const char *text), (device, text)) {
    if (!device || !text) throw CUDA_ERROR_INVALID_VALUE;
    for (const Device &one : driver().devices) {
        if (!is_pci_bus_id(text, one.gpu)) continue;
        *device = one.index;
        return;
    }
    throw CUDA_ERROR_INVALID_DEVICE;
}

SIM_CU(4000, cuDeviceCanAccessPeer, (int *can, CUdevice device, CUdevice peer), (can, device, peer)) {
    find_device(device);
    find_device(peer);
    if (!can) throw CUDA_ERROR_INVALID_VALUE;
    *can = device != peer;
}

}  // namespace curb::sim
