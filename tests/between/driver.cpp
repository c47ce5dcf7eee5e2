// A libcuda.so.1 between programs and a driver, real or simulated. It counts the calls of each function of
// cuda_functions.def. A call for which a fault is set (tests/sim/sim.h: CURB_SIM_FAULT, curb_sim_fail) fails without
// reaching the driver; the others go on to the driver. Functions that are not in that list are found in the driver
// itself, however a program looks them up, because this library needs it.
//
// It finds the driver as libcuda-behind.so.1: a link of that name, in a folder of LD_LIBRARY_PATH after the one of this
// library. The loader keeps the two apart, though both have the soname libcuda.so.1.
#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <type_traits>
#include <unordered_map>

#pragma GCC visibility push(default)
#include "abi/cuda_abi.h"
#pragma GCC visibility pop
#include "abi/nvml_abi.h"
#include "faults.hpp"
#include "sim.h"

namespace curb::sim::entries {
#define CURB_CU(name, types) constinit Entry name{#name, 0};
#define CURB_CU_STREAM(name, types) CURB_CU(name, types) CURB_CU(name##_ptsz, types)
#define CURB_CU_BLOCKING(name, types) CURB_CU(name, types) CURB_CU(name##_ptds, types)
#include "abi/cuda_functions.def"
#undef CURB_CU
#undef CURB_CU_STREAM
#undef CURB_CU_BLOCKING
}  // namespace curb::sim::entries

namespace {

using curb::sim::Entry;
namespace entries = curb::sim::entries;

// Returns null if the driver lacks the function.
void *behind(const char *name) noexcept {
    static void *const driver = dlopen("libcuda-behind.so.1", RTLD_LAZY | RTLD_NOLOAD);
    return driver ? dlsym(driver, name) : nullptr;
}

void *between(void *address) noexcept;

template <Entry &entry, class Function>
struct Forward;
template <Entry &entry, class... Args>
struct Forward<entry, CUresult(Args...)> {
    static CUresult direct(Args... args) noexcept {
        static auto *const function = reinterpret_cast<CUresult (*)(Args...)>(behind(entry.name));
        return function ? function(args...) : CUDA_ERROR_NOT_FOUND;
    }
    static CUresult call(Args... args) noexcept {
        if (const CUresult result = curb::sim::fault(entry)) return result;
        const CUresult result = direct(args...);
        if constexpr (&entry == &entries::cuGetProcAddress || &entry == &entries::cuGetProcAddress_v2)
            if (result == CUDA_SUCCESS) answer(args...);
        return result;
    }

  private:
    template <class... Rest>
    static void answer(const char *, void **function, Rest...) noexcept {
        if (function) *function = between(*function);
    }
};

#define FORWARD(name) Forward<entries::name, decltype(::name)>

// Returns our function for the address of a driver's function in the list; any other address unchanged.
void *between(void *address) noexcept {
    static const auto &ours = *new std::unordered_map<void *, void *>{
#define CURB_CU(name, types) {behind(#name), reinterpret_cast<void *>(&FORWARD(name)::call)},
#define CURB_CU_STREAM(name, types) CURB_CU(name, types) CURB_CU(name##_ptsz, types)
#define CURB_CU_BLOCKING(name, types) CURB_CU(name, types) CURB_CU(name##_ptds, types)
#include "abi/cuda_functions.def"
#undef CURB_CU
#undef CURB_CU_STREAM
#undef CURB_CU_BLOCKING
    };
    const auto found = address ? ours.find(address) : ours.end();
    return found == ours.end() ? address : found->second;
}

// NVML gives the figure for this process: it is independent of the driver behind.
struct Nvml {
    decltype(&nvmlDeviceGetHandleByPciBusId_v2) by_bus = nullptr;
    decltype(&nvmlDeviceGetComputeRunningProcesses_v3) processes = nullptr;
};
const Nvml &nvml() {
    static const Nvml functions = [] {
        Nvml found;
        void *library = dlopen("libnvidia-ml.so.1", RTLD_LAZY);
        const auto look_up = [&](auto &slot, const char *name) {
            slot = library ? reinterpret_cast<std::remove_reference_t<decltype(slot)>>(dlsym(library, name)) : nullptr;
        };
        decltype(&nvmlInit_v2) init = nullptr;
        look_up(init, "nvmlInit_v2");
        if (!init || init() != NVML_SUCCESS) return found;
        look_up(found.by_bus, "nvmlDeviceGetHandleByPciBusId_v2");
        look_up(found.processes, "nvmlDeviceGetComputeRunningProcesses_v3");
        return found;
    }();
    return functions;
}

}  // namespace

// The exports: ifuncs, resolved when the library is loaded, with the types of the list.
#define CURB_CU(name, types)                                                                                      \
    extern "C" __attribute__((used)) decltype(&::name) between_##name() noexcept { return &FORWARD(name)::call; } \
    extern "C" __attribute__((visibility("default"), ifunc("between_" #name))) CUresult name types;
#define CURB_CU_STREAM(name, types) CURB_CU(name, types) CURB_CU(name##_ptsz, types)
#define CURB_CU_BLOCKING(name, types) CURB_CU(name, types) CURB_CU(name##_ptds, types)
#include "abi/cuda_functions.def"
#undef CURB_CU
#undef CURB_CU_STREAM
#undef CURB_CU_BLOCKING

SIM_EXPORT uint64_t curb_sim_held(int device) {
    std::array<char, 32> bus{};
    std::array<nvmlProcessInfo_t, 256> processes{};
    unsigned count = processes.size();
    nvmlDevice_t handle = nullptr;
    if (!nvml().by_bus || !nvml().processes) return 0;
    if (FORWARD(cuDeviceGetPCIBusId)::direct(bus.data(), bus.size(), device) != CUDA_SUCCESS) return 0;
    if (nvml().by_bus(bus.data(), &handle) != NVML_SUCCESS) return 0;
    if (nvml().processes(handle, &count, processes.data()) != NVML_SUCCESS) return 0;
    for (unsigned i = 0; i < count; ++i)
        if (processes[i].pid == static_cast<unsigned>(::getpid())) return processes[i].usedGpuMemory;
    return 0;
}

SIM_EXPORT uint64_t curb_sim_calls(const char *name) {
#define CURB_CU(one, types) \
    if (std::strcmp(name, #one) == 0) return entries::one.calls.load();
#define CURB_CU_STREAM(one, types) CURB_CU(one, types) CURB_CU(one##_ptsz, types)
#define CURB_CU_BLOCKING(one, types) CURB_CU(one, types) CURB_CU(one##_ptds, types)
#include "abi/cuda_functions.def"
#undef CURB_CU
#undef CURB_CU_STREAM
#undef CURB_CU_BLOCKING
    return 0;
}
