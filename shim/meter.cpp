#include "meter.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <mutex>

#include "nvml_abi.h"
#include "real_libc.hpp"

namespace curb::shim {
namespace {

struct Nvml {
    decltype(&nvmlInit_v2) init = nullptr;
    decltype(&nvmlDeviceGetHandleByUUID) by_uuid = nullptr;
    decltype(&nvmlDeviceGetMemoryInfo) memory = nullptr;
    decltype(&nvmlDeviceGetComputeRunningProcesses_v3) processes = nullptr;

    bool load() noexcept {
        void *library = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL);
        if (!library) {
            dlerror();
            return false;
        }
        const auto find = [&](auto &slot, const char *name) {
            slot = reinterpret_cast<std::remove_reference_t<decltype(slot)>>(real::dlsym()(library, name));
        };
        find(init, "nvmlInit_v2");
        find(by_uuid, "nvmlDeviceGetHandleByUUID");
        find(memory, "nvmlDeviceGetMemoryInfo");
        find(processes, "nvmlDeviceGetComputeRunningProcesses_v3");
        // Drivers before 510 have the same call under its older name, with the same layout.
        if (!processes) find(processes, "nvmlDeviceGetComputeRunningProcesses_v2");
        return init && by_uuid && memory && processes && init() == NVML_SUCCESS;
    }
};

constinit Nvml nvml_functions;
constinit bool nvml_usable = false;
constinit std::once_flag nvml_once;

const Nvml *nvml() noexcept {
    std::call_once(nvml_once, [] { nvml_usable = nvml_functions.load(); });
    return nvml_usable ? &nvml_functions : nullptr;
}

// NVML's spelling of a UUID: "GPU-" and the bytes in the usual groups.
std::array<char, 48> uuid_text(const CUuuid &uuid) noexcept {
    std::array<char, 48> text{};
    char *out = text.data() + std::snprintf(text.data(), text.size(), "GPU-");
    for (int i = 0; i < 16; ++i) {
        if (i == 4 || i == 6 || i == 8 || i == 10) *out++ = '-';
        out += std::snprintf(out, 3, "%02x", static_cast<unsigned char>(uuid.bytes[i]));
    }
    return text;
}

}  // namespace

nvmlDevice_t Meter::device() noexcept {
    nvmlDevice_t device = device_.load(std::memory_order_acquire);
    const Nvml *library = device ? nullptr : nvml();
    if (library && library->by_uuid(uuid_text(uuid_).data(), &device) == NVML_SUCCESS)
        device_.store(device, std::memory_order_release);
    return device;
}

std::optional<Bytes> Meter::held_by_process() noexcept {
    const nvmlDevice_t on = device();
    std::array<nvmlProcessInfo_t, 128> processes{};
    auto count = static_cast<unsigned>(processes.size());
    if (!on || nvml()->processes(on, &count, processes.data()) != NVML_SUCCESS) return std::nullopt;
    const auto self = static_cast<unsigned>(getpid());
    for (unsigned i = 0; i < count && i < processes.size(); ++i)
        if (processes[i].pid == self && processes[i].usedGpuMemory != ~0ULL) return processes[i].usedGpuMemory;
    return std::nullopt;
}

std::optional<Bytes> Meter::used_by_all() noexcept {
    const nvmlDevice_t on = device();
    nvmlMemory_t memory{};
    if (!on || nvml()->memory(on, &memory) != NVML_SUCCESS) return std::nullopt;
    return memory.used;
}

}  // namespace curb::shim
