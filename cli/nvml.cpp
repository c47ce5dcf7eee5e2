#include "nvml.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <array>

#include "nvml_abi.h"
#include "target.hpp"

namespace curb::cli {

#define CURB_NVML_CALLS(X)                        \
    X(nvmlInit_v2)                                \
    X(nvmlErrorString)                            \
    X(nvmlSystemGetDriverVersion)                 \
    X(nvmlDeviceGetCount_v2)                      \
    X(nvmlDeviceGetHandleByIndex_v2)              \
    X(nvmlDeviceGetUUID)                          \
    X(nvmlDeviceGetMemoryInfo)                    \
    X(nvmlDeviceGetComputeRunningProcesses_v3)    \
    X(nvmlDeviceGetMPSComputeRunningProcesses_v3) \
    X(nvmlDeviceGetMigMode)

struct NvmlCalls {
#define CURB_SLOT(name) decltype(&::name) name = nullptr;
    CURB_NVML_CALLS(CURB_SLOT)
#undef CURB_SLOT
};

namespace {

using policy::Result;
using ListCall = decltype(&nvmlDeviceGetComputeRunningProcesses_v3);

// Asked again while the list grows.
nvmlReturn_t list(ListCall call, nvmlDevice_t device, std::vector<nvmlProcessInfo_t> &out) {
    out.resize(64);
    for (;;) {
        auto count = static_cast<unsigned>(out.size());
        const nvmlReturn_t result = call(device, &count, out.data());
        if (result == NVML_ERROR_INSUFFICIENT_SIZE && out.size() < 100'000) {
            out.resize(std::max<std::size_t>(out.size() * 2, count + 16));
            continue;
        }
        out.resize(result == NVML_SUCCESS ? count : 0);
        return result;
    }
}

}  // namespace

const GpuUser *GpuState::user(int pid) const {
    const auto found = std::find_if(users.begin(), users.end(), [=](const GpuUser &user) { return user.pid == pid; });
    return found == users.end() ? nullptr : &*found;
}

bool GpuState::is_mps_client(int pid) const {
    return std::find(mps_clients.begin(), mps_clients.end(), pid) != mps_clients.end();
}

Result<Nvml, std::string> Nvml::open() {
    void *library = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *why = ::dlerror();
        return std::string("there is no NVML (") + (why ? why : "libnvidia-ml.so.1 cannot be loaded") +
               "); run curb where the driver is installed";
    }
    static NvmlCalls the_calls;  // one for each run of curb
    NvmlCalls *calls = &the_calls;
#define CURB_FIND(name) calls->name = reinterpret_cast<decltype(&::name)>(::dlsym(library, #name));
    CURB_NVML_CALLS(CURB_FIND)
#undef CURB_FIND
#define CURB_THERE(name) &&calls->name != nullptr
    if (!(true CURB_NVML_CALLS(CURB_THERE)))
        return std::string("NVML lacks a call that curb needs; a driver of 570 or newer has them");
#undef CURB_THERE
    if (const nvmlReturn_t error = calls->nvmlInit_v2(); error != NVML_SUCCESS)
        return std::string("NVML cannot be initialised: ") + calls->nvmlErrorString(error) +
               "; see whether nvidia-smi works here";
    return Nvml(calls);
}

std::string Nvml::driver_version() const {
    std::array<char, 96> text{};
    return calls_->nvmlSystemGetDriverVersion(text.data(), text.size()) == NVML_SUCCESS ? text.data() : "";
}

Result<std::vector<GpuState>, std::string> Nvml::gpus() const {
    const NvmlCalls &nvml = *calls_;
    const auto fault = [&](const char *call, nvmlReturn_t error) {
        return std::string(call) + ": " + nvml.nvmlErrorString(error);
    };
    unsigned count = 0;
    if (const auto error = nvml.nvmlDeviceGetCount_v2(&count)) return fault("nvmlDeviceGetCount", error);
    std::vector<GpuState> out;
    for (unsigned index = 0; index < count; ++index) {
        GpuState gpu;
        gpu.index = static_cast<int>(index);
        nvmlDevice_t device = nullptr;
        std::array<char, 96> uuid{};
        nvmlMemory_t memory{};
        std::vector<nvmlProcessInfo_t> processes;
        // One that this container may not use, or that has fallen off the bus: no process is on it that could be moved.
        if (nvml.nvmlDeviceGetHandleByIndex_v2(index, &device) != NVML_SUCCESS) continue;
        if (const auto error = nvml.nvmlDeviceGetUUID(device, uuid.data(), uuid.size()))
            return fault("nvmlDeviceGetUUID", error);
        if (const auto error = nvml.nvmlDeviceGetMemoryInfo(device, &memory))
            return fault("nvmlDeviceGetMemoryInfo", error);
        unsigned current = 0, pending = 0;  // a GPU that knows no MIG answers that it is not supported
        gpu.mig = nvml.nvmlDeviceGetMigMode(device, &current, &pending) == NVML_SUCCESS && current == 1;
        const auto listed = list(nvml.nvmlDeviceGetComputeRunningProcesses_v3, device, processes);
        if (listed != NVML_SUCCESS && !gpu.mig) return fault("nvmlDeviceGetComputeRunningProcesses", listed);
        for (const nvmlProcessInfo_t &one : processes) {
            GpuUser user{static_cast<int>(one.pid), name_of(static_cast<int>(one.pid)), std::nullopt};
            if (one.usedGpuMemory != NVML_VALUE_NOT_AVAILABLE) user.held = one.usedGpuMemory;
            gpu.users.push_back(user);
        }
        list(nvml.nvmlDeviceGetMPSComputeRunningProcesses_v3, device, processes);
        for (const nvmlProcessInfo_t &one : processes) gpu.mps_clients.push_back(static_cast<int>(one.pid));
        gpu.uuid = uuid.data();
        gpu.total = memory.total;
        gpu.free = memory.free;
        out.push_back(std::move(gpu));
    }
    return out;
}

}  // namespace curb::cli
