// Memory that curb can move: the program's own virtual memory, under handles of curb's.

#include "memory.hpp"

using namespace scenario;

namespace {

CUdeviceptr reserve(std::uint64_t bytes) {
    CUdeviceptr address = 0;
    MUST(cuMemAddressReserve(&address, bytes, 0, 0, 0));
    return address;
}

void map(CUdeviceptr address, CUmemGenericAllocationHandle handle, std::uint64_t bytes) {
    const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    MUST(cuMemMap(address, bytes, 0, handle, 0));
    MUST(cuMemSetAccess(address, bytes, &access, 1));
}

std::uint32_t word_at(CUdeviceptr address) {
    std::uint32_t word = 0;
    MUST(cuMemcpyDtoH_v2(&word, address, sizeof word));
    return word;
}

CUmemGenericAllocationHandle retain(CUdeviceptr address) {
    CUmemGenericAllocationHandle handle = 0;
    MUST(cuMemRetainAllocationHandle(&handle, reinterpret_cast<void *>(address)));
    return handle;
}

}  // namespace

SCENARIO_NAMED(a_handle_stays_the_same_through_retain_release_and_two_mappings) {
    start();
    const CUmemGenericAllocationHandle handle = take_physical(4 * MiB);
    const CUdeviceptr first = reserve(8 * MiB), second = first + 4 * MiB;
    map(first, handle, 4 * MiB);
    map(second, handle, 4 * MiB);
    MUST(cuMemsetD32_v2(first, 0xabcd, MiB));
    EXPECT_EQ(word_at(second + 4 * MiB - 4), 0xabcdU);
    MUST(cuMemRelease(handle));
    EXPECT_EQ(cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(retain(first), handle);
    EXPECT_EQ(retain(second + 1), handle);
    CUmemAllocationProp properties{};
    MUST(cuMemGetAllocationPropertiesFromHandle(&properties, handle));
    EXPECT_EQ(properties.location.type, CU_MEM_LOCATION_TYPE_DEVICE);
    MUST(cuMemUnmap(first, 8 * MiB));
    MUST(cuMemRelease(handle));
    EXPECT_EQ(curb_sim_held(0), kContext + 4 * MiB);  // the second reference
    MUST(cuMemRelease(handle));
    EXPECT_EQ(curb_sim_held(0), kContext);
    EXPECT_EQ(shown_held(), kContext);
    // The program's references are curb's to count: the driver saw the call with a handle that had ended, and the last.
    EXPECT_EQ(curb_sim_calls("cuMemRelease"), 2);
}

SCENARIO_NAMED(each_call_that_takes_a_handle_reaches_the_driver_with_its_own) {
    start();
    CUmemAllocationProp properties = families::on_device(0);
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUmemGenericAllocationHandle handle = 0, again = 0;
    MUST(cuMemCreate(&handle, 2 * MiB, &properties, 0));
    int file = -1;
    MUST(cuMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    MUST(cuMemImportFromShareableHandle(&again, reinterpret_cast<void *>(static_cast<std::intptr_t>(file)),
                                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(file);
    EXPECT_EQ(again, handle);
    MUST(cuMemRelease(again));
    // This machine has no multicast objects: the driver has looked at the handle first.
    EXPECT_EQ(cuMulticastBindMem(0, 0, handle, 0, 2 * MiB, 0), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(cuMulticastBindMem(0, 0, 0x1234, 0, 2 * MiB, 0), CUDA_ERROR_INVALID_VALUE);
    const CUDA_ARRAY3D_DESCRIPTOR descriptor{4096, 4096, 0, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_SPARSE};
    CUarrayMapInfo info{};
    MUST(cuArray3DCreate_v2(&info.resource.array, &descriptor));
    info.resourceType = CU_RESOURCE_TYPE_ARRAY;
    info.memOperationType = CU_MEM_OPERATION_TYPE_MAP;
    info.memHandle.memHandle = handle;
    info.deviceBitMask = 1;
    MUST(cuMemMapArrayAsync(&info, 1, nullptr));
    EXPECT_EQ(info.memHandle.memHandle, handle);  // the program's list is as it was
    MUST(cuMemRelease(handle));
    EXPECT_EQ(curb_sim_held(0), kContext + 2 * MiB);  // the array has it
    MUST(cuArrayDestroy(info.resource.array));
    EXPECT_EQ(curb_sim_held(0), kContext);
}

SCENARIO_NAMED(threads_that_map_and_release_the_same_memory_leave_nothing) {
    start();
    in_threads(8, [](unsigned) {
        const CUdeviceptr at = reserve(2 * MiB);
        for (int i = 0; i < 200; ++i) {
            const CUmemGenericAllocationHandle handle = take_physical(2 * MiB);
            map(at, handle, 2 * MiB);
            MUST(cuMemRelease(handle));
            EXPECT_EQ(retain(at), handle);
            MUST(cuMemUnmap(at, 2 * MiB));
            MUST(cuMemRelease(handle));
        }
    });
    EXPECT_EQ(curb_sim_held(0), kContext);
    EXPECT_EQ(shown_held(), kContext);
}
