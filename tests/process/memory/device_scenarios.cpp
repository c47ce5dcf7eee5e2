// The devices as programs see them, and which device is charged.

#include "abi/nvml_abi.h"
#include "memory.hpp"

using namespace scenario;

SCENARIO_NAMED(nvml_tells_the_same_as_cuda) {
    start();
    take(64 * MiB);
    nvmlDevice_t device = nullptr;
    EXPECT_EQ(nvmlInit_v2(), NVML_SUCCESS);
    EXPECT_EQ(nvmlDeviceGetHandleByIndex_v2(0, &device), NVML_SUCCESS);
    const auto [free_bytes, total] = mem_info();
    nvmlMemory_t first{};
    EXPECT_EQ(nvmlDeviceGetMemoryInfo(device, &first), NVML_SUCCESS);
    EXPECT_EQ(first.total, total);
    EXPECT_EQ(first.free, free_bytes);
    EXPECT_EQ(first.used, total - free_bytes);
    nvmlMemory_v2_t second{};
    second.version = sizeof second | 2U << 24;
    EXPECT_EQ(nvmlDeviceGetMemoryInfo_v2(device, &second), NVML_SUCCESS);
    EXPECT_EQ(second.total, total);
    EXPECT_EQ(second.free, free_bytes);
    EXPECT_EQ(second.used + second.free + second.reserved, total);
    EXPECT_EQ(nvmlDeviceGetMemoryInfo(device, nullptr), NVML_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(nvmlShutdown(), NVML_SUCCESS);
}

SCENARIO_NAMED(the_device_itself_is_reported_where_the_policy_says_so) {  // cap: 1 GiB, report: device
    start();
    auto [free_bytes, total] = mem_info();
    EXPECT_EQ(total, 80 * GiB);
    EXPECT(free_bytes > 70 * GiB);
    MUST(cuDeviceTotalMem_v2(&total, 0));
    EXPECT_EQ(total, 80 * GiB);
    CUdeviceptr pointer = 0;
    EXPECT_EQ(cuMemAlloc_v2(&pointer, 2 * GiB), CUDA_ERROR_OUT_OF_MEMORY);  // the cap still applies
}

SCENARIO_NAMED(without_a_policy_nothing_is_changed) {
    start();
    EXPECT_EQ(shown_total(), 80 * GiB);
    const CUdeviceptr large = take(70 * GiB);
    CUdeviceptr pointer = 0;
    EXPECT_EQ(cuMemAlloc_v2(&pointer, 20 * GiB), CUDA_ERROR_OUT_OF_MEMORY);  // the driver's own
    MUST(cuMemFree_v2(large));
}

SCENARIO_NAMED(memory_is_charged_where_it_lives) {  // two devices, "*": 1 GiB
    start();
    const CUdeviceptr here = take(64 * MiB);
    CUcontext second = nullptr;
    MUST(cuDevicePrimaryCtxRetain(&second, 1));
    const CUstream stream = make_stream(CU_STREAM_DEFAULT);
    const CUmemoryPool pool = make_pool(pool_on(CU_MEM_LOCATION_TYPE_DEVICE, 1));
    CUdeviceptr block = 0;
    MUST(cuMemAllocFromPoolAsync(&block, 64 * MiB, pool, stream));
    EXPECT_EQ(curb_sim_held(0), kContext + 64 * MiB);
    EXPECT_EQ(curb_sim_held(1), kContext + 64 * MiB);
    EXPECT_EQ(shown_held(), kContext + 64 * MiB);
    take_physical(64 * MiB, 1);
    EXPECT_EQ(shown_held(), kContext + 64 * MiB);
    MUST(cuCtxSetCurrent(second));
    // A free credits the device that was charged, whichever is current.
    MUST(cuMemFree_v2(here));
    EXPECT_EQ(curb_sim_held(0), kContext);
    EXPECT_EQ(shown_held(), kContext + 128 * MiB);
    EXPECT_EQ(shown_held(), curb_sim_held(1));
    EXPECT_EQ(cuMemAllocFromPoolAsync(&block, 512 * MiB, pool, stream), CUDA_ERROR_OUT_OF_MEMORY);
    // So is a graph's memory.
    const AllocatingGraph graph(64 * MiB);
    MUST(cuGraphLaunch(graph.executable, nullptr));
    EXPECT_EQ(shown_held(), curb_sim_held(1));
    MUST(cuCtxSetCurrent(nullptr));
    EXPECT_EQ(curb_sim_held(0), kContext + 64 * MiB);
}

SCENARIO_NAMED(a_default_pool_is_charged_to_its_device_whichever_is_current) {  // two devices, "*": 1 GiB
    start();
    CUmemoryPool pool = nullptr;
    MUST(cuDeviceGetDefaultMemPool(&pool, 1));
    keep_everything(pool);
    const CUstream stream = make_stream(CU_STREAM_DEFAULT);
    CUdeviceptr block = 0, more = 0;
    MUST(cuMemAllocFromPoolAsync(&block, 768 * MiB, pool, stream));
    EXPECT_EQ(curb_sim_held(1), 768 * MiB);
    EXPECT_EQ(shown_held(), kContext);
    EXPECT_EQ(cuMemAllocFromPoolAsync(&more, 512 * MiB, pool, stream), CUDA_ERROR_OUT_OF_MEMORY);
    // The driver does not destroy it, so it keeps its memory.
    MUST(cuMemFreeAsync(block, stream));
    MUST(cuStreamSynchronize(stream));
    EXPECT_EQ(cuMemPoolDestroy(pool), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(curb_sim_held(1), 768 * MiB);
}

SCENARIO_NAMED(a_key_finds_its_gpu) {  // two devices in reverse order, "*": 1 GiB, nvidia-smi's GPU 1: 2 GiB
    start();
    std::size_t total = 0;
    MUST(cuDeviceTotalMem_v2(&total, 0));
    EXPECT_EQ(total, 2 * GiB);
    MUST(cuDeviceTotalMem_v2(&total, 1));
    EXPECT_EQ(total, 1 * GiB);
    take(1 * GiB);
    EXPECT_EQ(shown_held(), kContext + 1 * GiB);
    EXPECT_EQ(curb_sim_held(0), kContext + 1 * GiB);
}

SCENARIO_NAMED(a_key_finds_its_mig_instance) {  // MIG, a GPU of 80 GiB, its instance: 1 GiB
    start();
    EXPECT_EQ(shown_total(), kCap);
    EXPECT_EQ(shown_held(), kContext);
    fill([] {
        CUdeviceptr pointer = 0;
        return cuMemAlloc_v2(&pointer, 32 * MiB);
    });
    EXPECT_EQ(shown_held(), curb_sim_held(0));
    // curb measures the instance, so it sees code grow.
    load_module("curb-sim-module global=64MiB\n");
    EXPECT_EQ(shown_held(64 * MiB), curb_sim_held(0));
}
