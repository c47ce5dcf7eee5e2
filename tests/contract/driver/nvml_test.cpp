// NVML beside CUDA: the same devices, the same memory.
#include "contract.hpp"

using namespace contract;

TEST_CASE("a device has one UUID and one bus id, for CUDA and NVML") {
    const Gpu gpu;
    const Nvml nvml;
    CUuuid uuid{};
    char text[96] = "", bus[32] = "";
    nvmlDevice_t found = nullptr;
    REQUIRE(cuDeviceGetUuid_v2(&uuid, 0) == CUDA_SUCCESS);
    REQUIRE(nvmlDeviceGetUUID(nvml.device(), text, sizeof text) == NVML_SUCCESS);
    CHECK(text_of("GPU-", uuid) == text);
    CHECK(nvmlDeviceGetHandleByUUID(text, &found) == NVML_SUCCESS);
    CHECK(found == nvml.device());
    REQUIRE(cuDeviceGetPCIBusId(bus, sizeof bus, 0) == CUDA_SUCCESS);
    CHECK(nvmlDeviceGetHandleByPciBusId_v2(bus, &found) == NVML_SUCCESS);
    CHECK(found == nvml.device());
    CUdevice device = -1;
    CHECK(cuDeviceGetByPCIBusId(&device, bus) == CUDA_SUCCESS);
    CHECK(device == 0);
}

TEST_CASE("NVML reports the bytes that the process holds, and those used of the device") {
    const Gpu gpu;
    const Nvml nvml;
    nvmlMemory_t before{}, after{};
    REQUIRE(nvmlDeviceGetMemoryInfo(nvml.device(), &before) == NVML_SUCCESS);
    const CUdeviceptr block = allocate(256 * kMiB);
    REQUIRE(nvmlDeviceGetMemoryInfo(nvml.device(), &after) == NVML_SUCCESS);
    CHECK(after.used - before.used == 256 * kMiB);
    CHECK(after.total == before.total);
    CHECK(gpu.taken() == 256 * kMiB);
    unsigned count = 0;
    CHECK(nvmlDeviceGetComputeRunningProcesses_v3(nvml.device(), &count, nullptr) == NVML_ERROR_INSUFFICIENT_SIZE);
    CHECK(count >= 1);
    cuMemFree_v2(block);
}

TEST_CASE("NVML's total includes reserved memory, which the first form of the call counts as used") {
    const Gpu gpu;
    const Nvml nvml;
    nvmlMemory_t first{};
    nvmlMemory_v2_t second{};
    second.version = nvmlMemory_v2;
    size_t free = 0, total = 0;
    REQUIRE(nvmlDeviceGetMemoryInfo(nvml.device(), &first) == NVML_SUCCESS);
    REQUIRE(nvmlDeviceGetMemoryInfo_v2(nvml.device(), &second) == NVML_SUCCESS);
    REQUIRE(cuMemGetInfo_v2(&free, &total) == CUDA_SUCCESS);
    CHECK(second.total == first.total);
    CHECK(second.free == first.free);
    CHECK(second.used + second.reserved == first.used);
    CHECK(total == second.total - second.reserved);
    CHECK(free == second.free);
}

TEST_CASE("before nvmlInit calls return NVML_ERROR_UNINITIALIZED") {
    unsigned count = 0;
    CHECK(nvmlDeviceGetCount_v2(&count) == NVML_ERROR_UNINITIALIZED);
    const Nvml nvml;
    CHECK(nvmlDeviceGetCount_v2(&count) == NVML_SUCCESS);
    nvmlDevice_t found = nullptr;
    CHECK(nvmlDeviceGetHandleByIndex_v2(count, &found) == NVML_ERROR_INVALID_ARGUMENT);
    CHECK(nvmlDeviceGetHandleByUUID("GPU-no", &found) == NVML_ERROR_NOT_FOUND);
}
