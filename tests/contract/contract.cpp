#include "contract.hpp"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "nvml_abi.h"

namespace contract {

int64_t held() {
    nvmlDevice_t device = nullptr;
    REQUIRE(nvmlInit_v2() == NVML_SUCCESS);
    REQUIRE(nvmlDeviceGetHandleByIndex_v2(0, &device) == NVML_SUCCESS);
    std::vector<nvmlProcessInfo_t> processes(64);
    unsigned count = 64;
    REQUIRE(nvmlDeviceGetComputeRunningProcesses_v3(device, &count, processes.data()) == NVML_SUCCESS);
    nvmlShutdown();
    for (unsigned i = 0; i < count; ++i)
        if (processes[i].pid == static_cast<unsigned>(::getpid()))
            return static_cast<int64_t>(processes[i].usedGpuMemory);
    return 0;
}

int64_t device_used() {
    size_t free = 0, total = 0;
    REQUIRE(cuMemGetInfo_v2(&free, &total) == CUDA_SUCCESS);
    return static_cast<int64_t>(total - free);
}

Gpu::Gpu() {
    REQUIRE(cuInit(0) == CUDA_SUCCESS);
    REQUIRE(cuDeviceGet(&device, 0) == CUDA_SUCCESS);
    REQUIRE(cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS);
    REQUIRE(cuCtxSetCurrent(context) == CUDA_SUCCESS);
    at_start_ = held();
}

Gpu::~Gpu() {
    cuCtxSetCurrent(nullptr);
    cuDevicePrimaryCtxRelease_v2(device);
}

Filled::Filled() {
    for (const int64_t size : {4 * kGiB, 256 * kMiB, 32 * kMiB, 2 * kMiB})
        for (CUdeviceptr block = 0; cuMemAlloc_v2(&block, static_cast<size_t>(size)) == CUDA_SUCCESS;)
            blocks_.emplace_back(block, size);
}

Filled::~Filled() {
    for (const auto &[block, size] : blocks_) cuMemFree_v2(block);
}

void Filled::leave(int64_t bytes) {
    for (; bytes > 0 && !blocks_.empty(); blocks_.pop_back()) {
        cuMemFree_v2(blocks_.back().first);
        bytes -= blocks_.back().second;
    }
}

int run_case(const std::string &name, const std::vector<std::string> &environment) {
    std::vector<std::string> variables = environment;
    for (char **variable = environ; *variable; ++variable)
        variables.emplace_back(*variable);  // the first of a name wins
    std::vector<char *> env;
    env.reserve(variables.size() + 1);
    for (std::string &variable : variables) env.push_back(variable.data());
    env.push_back(nullptr);
    std::string program = "/proc/self/exe", what = name;
    char *arguments[] = {program.data(), what.data(), nullptr};
    pid_t pid = 0;
    REQUIRE(::posix_spawn(&pid, "/proc/self/exe", nullptr, nullptr, arguments, env.data()) == 0);
    int status = 0;
    REQUIRE(::waitpid(pid, &status, 0) == pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

CUmemAllocationProp on_device(int device, CUmemAllocationHandleType handle) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = handle;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    return properties;
}

CUmemPoolProps pool_on(CUmemLocationType type, int id, CUmemAllocationHandleType handle) {
    CUmemPoolProps properties{};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.handleTypes = handle;
    properties.location = {type, id};
    return properties;
}

CUmemAccessDesc read_write(int device) {
    return {{CU_MEM_LOCATION_TYPE_DEVICE, device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
}

uint64_t attribute(CUmemoryPool pool, CUmemPool_attribute attribute) {
    uint64_t value = 0;
    REQUIRE(cuMemPoolGetAttribute(pool, attribute, &value) == CUDA_SUCCESS);
    return value;
}

uint64_t graph_attribute(CUgraphMem_attribute attribute) {
    uint64_t value = 0;
    REQUIRE(cuDeviceGetGraphMemAttribute(0, attribute, &value) == CUDA_SUCCESS);
    return value;
}

}  // namespace contract
