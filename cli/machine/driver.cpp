#include "machine/driver.hpp"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>

#include "abi/nvml_abi.h"
#include "control/proc.hpp"
#include "machine/target.hpp"
#include "machine/within.hpp"
#include "terminal/messages.hpp"

namespace curb::cli {
namespace {

// Returns the error of dlopen if the library cannot be loaded.
policy::Result<void *, std::string> open_library(const char *name) {
    if (void *library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL)) {
        link_map *map = nullptr;
        if (::dlinfo(library, RTLD_DI_LINKMAP, &map) == 0) say::detail(std::string("loaded ") + map->l_name);
        return library;
    }
    const char *why = ::dlerror();
    return why ? std::string(why) : std::string(name) + " cannot be loaded";
}

}  // namespace

std::string Driver::text(CUresult result) const {
    const char *name = nullptr, *words = nullptr;
    if (!cuGetErrorName || cuGetErrorName(result, &name) != CUDA_SUCCESS || !name)
        return "error " + std::to_string(static_cast<int>(result));
    if (!cuGetErrorString || cuGetErrorString(result, &words) != CUDA_SUCCESS || !words) return name;
    return std::string(name) + " (" + words + ")";
}

policy::Result<Driver, std::string> load_driver() {
    // The CUDA_VISIBLE_DEVICES of this shell does not apply to the process that the command is about.
    ::unsetenv("CUDA_VISIBLE_DEVICES");
    const auto library = open_library("libcuda.so.1");
    if (!library) return library.error();
    Driver driver;
#define CURB_FIND(name) driver.name = reinterpret_cast<decltype(&::name)>(::dlsym(*library, #name));
    CURB_FIND(cuInit)
    CURB_FIND(cuDriverGetVersion)
    CURB_FIND(cuDeviceGetCount)
    CURB_FIND(cuDeviceGetAttribute)
    CURB_FIND(cuGetErrorName)
    CURB_FIND(cuGetErrorString)
    CURB_CHECKPOINT_CALLS(CURB_FIND)
#undef CURB_FIND
    if (!driver.cuInit) return std::string("the libcuda.so.1 that is found is none");
    if (driver.cuDriverGetVersion && driver.cuDriverGetVersion(&driver.version) != CUDA_SUCCESS) driver.version = 0;
#define CURB_THERE(name) &&driver.name != nullptr
    driver.has_checkpoint = true CURB_CHECKPOINT_CALLS(CURB_THERE);
#undef CURB_THERE
    return driver;
}

policy::Result<Driver, std::string> open_driver() {
    auto loaded = load_driver();
    if (!loaded) return "there is no CUDA driver (" + loaded.error() + "); run curb where the process runs";
    Driver &driver = loaded.value();
    if (!driver.has_checkpoint) return driver;
    if (const CUresult error = driver.cuInit(0); error != CUDA_SUCCESS)
        return "the CUDA driver cannot be initialised: " + driver.text(error) + "; see whether nvidia-smi works here";
    return driver;
}

// ---- NVML ----

#define CURB_NVML_CALLS(X)           \
    X(nvmlInit_v2)                   \
    X(nvmlErrorString)               \
    X(nvmlSystemGetDriverVersion)    \
    X(nvmlDeviceGetCount_v2)         \
    X(nvmlDeviceGetHandleByIndex_v2) \
    X(nvmlDeviceGetUUID)             \
    X(nvmlDeviceGetMemoryInfo)
// Older drivers lack some of these.
#define CURB_NVML_MORE(X)                         \
    X(nvmlDeviceGetName)                          \
    X(nvmlDeviceGetMemoryInfo_v2)                 \
    X(nvmlDeviceGetComputeRunningProcesses_v3)    \
    X(nvmlDeviceGetMPSComputeRunningProcesses_v3) \
    X(nvmlDeviceGetGraphicsRunningProcesses_v3)   \
    X(nvmlDeviceGetMigMode)                       \
    X(nvmlDeviceGetMaxMigDeviceCount)             \
    X(nvmlDeviceGetMigDeviceHandleByIndex)        \
    X(nvmlDeviceGetPersistenceMode)               \
    X(nvmlDeviceGetUtilizationRates)              \
    X(nvmlDeviceGetTemperature)

namespace {

struct NvmlCalls {
#define CURB_SLOT(name) decltype(&::name) name = nullptr;
    CURB_NVML_CALLS(CURB_SLOT)
    CURB_NVML_MORE(CURB_SLOT)
#undef CURB_SLOT
};

policy::Result<NvmlCalls, std::string> open_nvml() {
    const auto library = open_library("libnvidia-ml.so.1");
    if (!library) return "there is no NVML (" + library.error() + "); run curb where the driver is installed";
    NvmlCalls calls;
#define CURB_FIND(name) calls.name = reinterpret_cast<decltype(&::name)>(::dlsym(*library, #name));
    CURB_NVML_CALLS(CURB_FIND)
    CURB_NVML_MORE(CURB_FIND)
#undef CURB_FIND
#define CURB_THERE(name) &&calls.name != nullptr
    if (!(true CURB_NVML_CALLS(CURB_THERE)))
        return std::string("NVML lacks a call that curb needs; a driver of 470 or newer has them");
#undef CURB_THERE
    // Drivers before 510 have the same lists under older names.
    const auto unless_found = [&](auto &slot, const char *older) {
        if (!slot) slot = reinterpret_cast<std::remove_reference_t<decltype(slot)>>(::dlsym(*library, older));
    };
    unless_found(calls.nvmlDeviceGetComputeRunningProcesses_v3, "nvmlDeviceGetComputeRunningProcesses_v2");
    unless_found(calls.nvmlDeviceGetMPSComputeRunningProcesses_v3, "nvmlDeviceGetMPSComputeRunningProcesses_v2");
    unless_found(calls.nvmlDeviceGetGraphicsRunningProcesses_v3, "nvmlDeviceGetGraphicsRunningProcesses_v2");
    if (const nvmlReturn_t error = calls.nvmlInit_v2(); error != NVML_SUCCESS)
        return std::string("NVML cannot be initialised: ") + calls.nvmlErrorString(error) +
               "; see whether nvidia-smi works here";
    return calls;
}

// Opens NVML once for each run of curb: that takes 9 ms.
const policy::Result<NvmlCalls, std::string> &the_nvml() {
    static const auto nvml = open_nvml();
    return nvml;
}

using ListCall = decltype(&nvmlDeviceGetComputeRunningProcesses_v3);

// Lists processes by `call`, which may be null. Asks again with a larger buffer while the list does not fit.
nvmlReturn_t list(ListCall call, nvmlDevice_t device, std::vector<nvmlProcessInfo_t> &out) {
    out.resize(call ? 64 : 0);
    if (!call) return NVML_ERROR_NOT_SUPPORTED;
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

// Adds each process once.
void add_users(GpuState &gpu, const std::vector<nvmlProcessInfo_t> &processes) {
    for (const nvmlProcessInfo_t &one : processes) {
        const auto pid = static_cast<int>(one.pid);
        if (gpu.user(pid) != nullptr) continue;
        GpuUser user{pid, label_of(pid, name_of(pid)), std::nullopt};
        if (one.usedGpuMemory != NVML_VALUE_NOT_AVAILABLE) user.held = one.usedGpuMemory;
        gpu.users.push_back(std::move(user));
    }
}

// Fills in the memory of a GPU. Where NVML has no figures, because it is the host's, takes those of the host.
nvmlReturn_t read_memory(const NvmlCalls &nvml, nvmlDevice_t device, GpuState &gpu) {
    nvmlMemory_t memory{};
    const nvmlReturn_t error = nvml.nvmlDeviceGetMemoryInfo(device, &memory);
    const auto host =
        error == NVML_ERROR_NOT_SUPPORTED && !gpu.mig ? control::file_text("/proc/meminfo") : std::nullopt;
    if (host) {
        gpu.shares_host_memory = true;
        gpu.total = control::number_in(*host, "MemTotal:") * policy::KiB;
        gpu.free = std::min(control::number_in(*host, "MemAvailable:") * policy::KiB, gpu.total);
        gpu.used = gpu.total - gpu.free;
        return NVML_SUCCESS;
    }
    if (error != NVML_SUCCESS) return error;
    gpu.total = memory.total;
    gpu.free = memory.free;
    gpu.used = memory.used;
    nvmlMemory_v2_t detailed{nvmlMemory_v2, 0, 0, 0, 0};
    if (nvml.nvmlDeviceGetMemoryInfo_v2 && nvml.nvmlDeviceGetMemoryInfo_v2(device, &detailed) == NVML_SUCCESS)
        gpu.used = detailed.used;
    return NVML_SUCCESS;
}

// Reads a GPU or an instance. Returns the error. Empty on success.
std::string read(const NvmlCalls &nvml, nvmlDevice_t device, GpuState &gpu) {
    const auto fault = [&](const char *call, nvmlReturn_t error) {
        return std::string(call) + ": " + nvml.nvmlErrorString(error);
    };
    std::array<char, 96> text{};
    if (const auto error = nvml.nvmlDeviceGetUUID(device, text.data(), text.size()))
        return fault("nvmlDeviceGetUUID", error);
    gpu.uuid = text.data();
    if (nvml.nvmlDeviceGetName && nvml.nvmlDeviceGetName(device, text.data(), text.size()) == NVML_SUCCESS)
        gpu.name = text.data();
    if (const auto error = read_memory(nvml, device, gpu)) return fault("nvmlDeviceGetMemoryInfo", error);
    std::vector<nvmlProcessInfo_t> processes;
    const auto listed = list(nvml.nvmlDeviceGetComputeRunningProcesses_v3, device, processes);
    gpu.lists_processes = listed != NVML_ERROR_NOT_SUPPORTED;
    if (listed != NVML_SUCCESS && gpu.lists_processes && !gpu.mig)
        return fault("nvmlDeviceGetComputeRunningProcesses", listed);
    add_users(gpu, processes);
    list(nvml.nvmlDeviceGetMPSComputeRunningProcesses_v3, device, processes);
    add_users(gpu, processes);
    for (const nvmlProcessInfo_t &one : processes) gpu.mps_clients.push_back(static_cast<int>(one.pid));
    list(nvml.nvmlDeviceGetGraphicsRunningProcesses_v3, device, processes);
    add_users(gpu, processes);
    return {};
}

// Reads how busy and how warm the GPU is. NVML knows neither of an instance.
void read_load(const NvmlCalls &nvml, nvmlDevice_t device, GpuState &gpu) {
    nvmlUtilization_t busy{};
    if (nvml.nvmlDeviceGetUtilizationRates && nvml.nvmlDeviceGetUtilizationRates(device, &busy) == NVML_SUCCESS)
        gpu.utilization = busy.gpu;
    unsigned degrees = 0;
    if (nvml.nvmlDeviceGetTemperature &&
        nvml.nvmlDeviceGetTemperature(device, NVML_TEMPERATURE_GPU, &degrees) == NVML_SUCCESS)
        gpu.temperature = degrees;
}

// Reads the instances of a MIG GPU. Skips an instance that cannot be read.
void read_instances(const NvmlCalls &nvml, nvmlDevice_t device, GpuState &gpu) {
    unsigned count = 0;
    if (!nvml.nvmlDeviceGetMaxMigDeviceCount || !nvml.nvmlDeviceGetMigDeviceHandleByIndex ||
        nvml.nvmlDeviceGetMaxMigDeviceCount(device, &count) != NVML_SUCCESS)
        return;
    for (unsigned index = 0; index < count; ++index) {
        nvmlDevice_t instance = nullptr;
        if (nvml.nvmlDeviceGetMigDeviceHandleByIndex(device, index, &instance) != NVML_SUCCESS) continue;
        GpuState state;
        state.index = static_cast<int>(index);
        state.mig = true;
        if (read(nvml, instance, state).empty()) gpu.instances.push_back(std::move(state));
    }
}

NvmlGpus read_gpus() {
    if (!the_nvml()) return the_nvml().error();
    const NvmlCalls &nvml = *the_nvml();
    unsigned count = 0;
    if (const auto error = nvml.nvmlDeviceGetCount_v2(&count))
        return std::string("nvmlDeviceGetCount: ") + nvml.nvmlErrorString(error);
    std::vector<GpuState> out;
    for (unsigned index = 0; index < count; ++index) {
        GpuState gpu;
        gpu.index = static_cast<int>(index);
        nvmlDevice_t device = nullptr;
        // A GPU that this container may not use, or that has fallen off the bus: no process on it could be moved.
        if (nvml.nvmlDeviceGetHandleByIndex_v2(index, &device) != NVML_SUCCESS) continue;
        unsigned current = 0, pending = 0;  // a GPU without MIG answers NOT_SUPPORTED
        gpu.mig = nvml.nvmlDeviceGetMigMode && nvml.nvmlDeviceGetMigMode(device, &current, &pending) == NVML_SUCCESS &&
                  current == 1;
        if (std::string fault = read(nvml, device, gpu); !fault.empty()) return fault;
        read_load(nvml, device, gpu);
        if (gpu.mig) read_instances(nvml, device, gpu);
        unsigned on = 1;
        gpu.kept_awake = !nvml.nvmlDeviceGetPersistenceMode ||
                         nvml.nvmlDeviceGetPersistenceMode(device, &on) != NVML_SUCCESS || on != 0;
        out.push_back(std::move(gpu));
    }
    return out;
}

std::atomic<bool> nvml_is_busy{false};

// Returns nullopt if the call does not return in time, or if an earlier one has not returned yet.
template <class Call>
auto guarded(Call call) -> std::optional<decltype(call())> {
    if (nvml_is_busy.exchange(true)) return std::nullopt;
    return within(kDriverPatience, [call] {
        struct Busy {
            ~Busy() { nvml_is_busy = false; }
        };
        const Busy until_return;
        return call();
    });
}

}  // namespace

const GpuUser *GpuState::user(int pid) const {
    const auto found = std::find_if(users.begin(), users.end(), [=](const GpuUser &user) { return user.pid == pid; });
    return found == users.end() ? nullptr : &*found;
}

bool GpuState::is_mps_client(int pid) const {
    return std::find(mps_clients.begin(), mps_clients.end(), pid) != mps_clients.end();
}

std::vector<const GpuUser *> users_of(const std::vector<GpuState> &gpus) {
    std::vector<const GpuUser *> out;
    for (const GpuState &gpu : gpus) {
        for (const GpuUser &user : gpu.users) out.push_back(&user);
        for (const GpuState &instance : gpu.instances)
            for (const GpuUser &user : instance.users) out.push_back(&user);
    }
    return out;
}

const GpuState *gpu_with(const std::vector<GpuState> &gpus, const std::string &uuid) {
    const auto gpu = std::find_if(gpus.begin(), gpus.end(), [&](const GpuState &one) { return one.uuid == uuid; });
    return gpu == gpus.end() ? nullptr : &*gpu;
}

policy::Bytes held_on(const std::vector<GpuState> &gpus, const std::string &uuid, int pid) {
    const GpuState *gpu = gpu_with(gpus, uuid);
    const GpuUser *user = gpu ? gpu->user(pid) : nullptr;
    return user ? user->held.value_or(0) : 0;
}

std::string nvml_driver_version() {
    const auto version = guarded([]() -> std::string {
        std::array<char, 96> text{};
        const auto &nvml = the_nvml();
        return nvml && nvml->nvmlSystemGetDriverVersion(text.data(), text.size()) == NVML_SUCCESS ? text.data() : "";
    });
    return version.value_or("");
}

NvmlGpus nvml_gpus() {
    if (auto gpus = guarded(read_gpus)) return std::move(*gpus);
    return "NVML has not answered for " + std::to_string(kDriverPatience.count()) + " s";
}

}  // namespace curb::cli
