// NVML beside CUDA: the same devices, the same memory.
#include "nvml_abi.h"

#include <unistd.h>

#include "contract.hpp"

using namespace contract;

namespace {

class Nvml {
  public:
    Nvml() { REQUIRE(nvmlInit_v2() == NVML_SUCCESS); }
    ~Nvml() { nvmlShutdown(); }
    Nvml(const Nvml &) = delete;
    Nvml &operator=(const Nvml &) = delete;

    nvmlDevice_t first() const {
        nvmlDevice_t device = nullptr;
        REQUIRE(nvmlDeviceGetHandleByIndex_v2(0, &device) == NVML_SUCCESS);
        return device;
    }
};

std::string text_of(const CUuuid &uuid) {
    std::string text = "GPU-";
    for (int i = 0; i < 16; ++i) {
        static constexpr char kDigits[] = "0123456789abcdef";
        const auto byte = static_cast<unsigned char>(uuid.bytes[i]);
        if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
        text += kDigits[byte >> 4];
        text += kDigits[byte & 15];
    }
    return text;
}

}  // namespace

TEST_CASE("a device has one UUID and one bus id, for CUDA and NVML") {
    const Gpu gpu;
    const Nvml nvml;
    CUuuid uuid{};
    char text[96] = "", bus[32] = "";
    nvmlDevice_t found = nullptr;
    REQUIRE(cuDeviceGetUuid_v2(&uuid, 0) == CUDA_SUCCESS);
    REQUIRE(nvmlDeviceGetUUID(nvml.first(), text, sizeof text) == NVML_SUCCESS);
    CHECK(text_of(uuid) == text);
    CHECK(nvmlDeviceGetHandleByUUID(text, &found) == NVML_SUCCESS);
    CHECK(found == nvml.first());
    REQUIRE(cuDeviceGetPCIBusId(bus, sizeof bus, 0) == CUDA_SUCCESS);
    CHECK(nvmlDeviceGetHandleByPciBusId_v2(bus, &found) == NVML_SUCCESS);
    CHECK(found == nvml.first());
    CUdevice device = -1;
    CHECK(cuDeviceGetByPCIBusId(&device, bus) == CUDA_SUCCESS);
    CHECK(device == 0);
}

TEST_CASE("NVML lists the process with what it holds, and the device with what is used") {
    const Gpu gpu;
    const Nvml nvml;
    nvmlMemory_t before{}, after{};
    REQUIRE(nvmlDeviceGetMemoryInfo(nvml.first(), &before) == NVML_SUCCESS);
    CUdeviceptr block = 0;
    REQUIRE(cuMemAlloc_v2(&block, 256 * kMiB) == CUDA_SUCCESS);
    REQUIRE(nvmlDeviceGetMemoryInfo(nvml.first(), &after) == NVML_SUCCESS);
    CHECK(after.used - before.used == 256 * kMiB);
    CHECK(after.total == before.total);
    CHECK(gpu.taken() == 256 * kMiB);
    unsigned count = 0;
    CHECK(nvmlDeviceGetComputeRunningProcesses_v3(nvml.first(), &count, nullptr) == NVML_ERROR_INSUFFICIENT_SIZE);
    CHECK(count >= 1);
    cuMemFree_v2(block);
}

TEST_CASE("NVML counts what is reserved: in its total, and in the first form of the call as used") {
    const Gpu gpu;
    const Nvml nvml;
    nvmlMemory_t first{};
    nvmlMemory_v2_t second{};
    second.version = nvmlMemory_v2;
    size_t free = 0, total = 0;
    REQUIRE(nvmlDeviceGetMemoryInfo(nvml.first(), &first) == NVML_SUCCESS);
    REQUIRE(nvmlDeviceGetMemoryInfo_v2(nvml.first(), &second) == NVML_SUCCESS);
    REQUIRE(cuMemGetInfo_v2(&free, &total) == CUDA_SUCCESS);
    CHECK(second.total == first.total);
    CHECK(second.free == first.free);
    CHECK(second.used + second.reserved == first.used);
    CHECK(total == second.total - second.reserved);
    CHECK(free == second.free);
}

TEST_CASE("NVML that was not initialised says so") {
    unsigned count = 0;
    CHECK(nvmlDeviceGetCount_v2(&count) == NVML_ERROR_UNINITIALIZED);
    const Nvml nvml;
    CHECK(nvmlDeviceGetCount_v2(&count) == NVML_SUCCESS);
    nvmlDevice_t found = nullptr;
    CHECK(nvmlDeviceGetHandleByIndex_v2(count, &found) == NVML_ERROR_INVALID_ARGUMENT);
    CHECK(nvmlDeviceGetHandleByUUID("GPU-no", &found) == NVML_ERROR_NOT_FOUND);
}
