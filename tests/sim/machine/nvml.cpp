// libnvidia-ml.so.1 of the simulated machine. It reads the books of the simulated driver: in the state file if
// CURB_SIM_STATE names one, else of the driver in this process, else of an idle machine.
// Rule: it never loads the driver, and looks for it at each call, since the program may load it later.
#include "abi/nvml_abi.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "environment.hpp"
#include "fault_file.hpp"
#include "identity.hpp"
#include "latency.hpp"
#include "machine.hpp"

namespace {

using namespace curb::sim;

constinit std::mutex state;
constinit int users = 0;
constinit Machine *own_machine = nullptr;  // leaked: others' exit handlers may still ask

Machine *machine() {
    if (environment_is("CURB_SIM_STATE", "")) {
        if (void *driver = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD)) {
            const auto of_driver = reinterpret_cast<void *(*)()>(::dlsym(driver, "curb_sim_machine"));
            void *found = of_driver ? of_driver() : nullptr;
            ::dlclose(driver);
            if (found) return static_cast<Machine *>(found);
        }
    }
    if (!own_machine) own_machine = Machine::open_from_environment().release();
    return own_machine;
}

// Memory that NVML counts and CUDA does not: in the total and, in the first form of the call, as used
// (docs/results/driver.md).
constexpr uint64_t kReserved = 615 * kMiB;

// A handle is the address of an entry here, so that a foreign one is recognised.
char gpus[kMaxDevices];
char instances[kMaxDevices];  // of the GPUs in MIG mode
nvmlDevice_t handle_of(int gpu) { return reinterpret_cast<nvmlDevice_t>(&gpus[gpu]); }
nvmlDevice_t instance_of(int gpu) { return reinterpret_cast<nvmlDevice_t>(&instances[gpu]); }
bool is_instance(nvmlDevice_t handle) {
    const auto *entry = reinterpret_cast<const char *>(handle);
    return std::find_if(std::begin(instances), std::end(instances), [=](const char &one) { return &one == entry; }) !=
           std::end(instances);
}

constinit std::atomic<bool> hangs{false};  // set by tests
constinit std::atomic<unsigned> process_lists{0};

// A failed GPU blocks NVML in the kernel: CURB_SIM_NVML=hangs:CALL names the call that never returns.
void may_hang(const char *call) {
    const bool forever = environment_is("CURB_SIM_NVML", (std::string("hangs:") + call).c_str());
    while (forever || hangs.load(std::memory_order_relaxed)) ::usleep(1000);
}

// A call in a process that is locked, or moved out of its GPUs, waits until it is unlocked (measured on an H200).
void wait_while_locked() {
    Machine *own = nullptr;
    {
        const std::lock_guard lock(state);
        if (users) own = machine();
    }
    while (own && own->is_locked(own_pid())) ::usleep(1000);
}

// Returns `answer()`, called under the lock. An error before nvmlInit, or if `out` is null, or if the call `name` has
// to fail.
template <class Out, class Answer>
nvmlReturn_t ready(Out *out, Answer answer, const char *name = __builtin_FUNCTION()) {
    if (const int fault = fault_in_file(name)) return static_cast<nvmlReturn_t>(fault);
    wait_while_locked();
    const std::lock_guard lock(state);
    if (!users) return NVML_ERROR_UNINITIALIZED;
    return out ? answer() : NVML_ERROR_INVALID_ARGUMENT;
}

// The same for a GPU or its instance.
template <class Out, class Answer>
nvmlReturn_t of_gpu(nvmlDevice_t handle, Out *out, Answer answer, const char *name = __builtin_FUNCTION()) {
    const auto find = [&] {
        for (int gpu = 0; gpu < machine()->device_count(); ++gpu)
            if (handle_of(gpu) == handle || instance_of(gpu) == handle) return answer(gpu);
        return NVML_ERROR_INVALID_ARGUMENT;
    };
    return ready(out, find, name);
}

nvmlReturn_t write(char *out, unsigned length, std::string_view text) {
    if (length <= text.size()) return NVML_ERROR_INSUFFICIENT_SIZE;
    std::memcpy(out, text.data(), text.size());
    out[text.size()] = 0;
    return NVML_SUCCESS;
}

template <class Predicate>
nvmlReturn_t first_that(nvmlDevice_t *out, Predicate predicate, const char *name = __builtin_FUNCTION()) {
    const auto find = [&] {
        for (int device = 0; device < machine()->device_count(); ++device) {
            if (!predicate(device)) continue;
            *out = handle_of(device);
            return NVML_SUCCESS;
        }
        return NVML_ERROR_NOT_FOUND;
    };
    return ready(out, find, name);
}

// The utilization of the GPU by this process, in percent, which tests set.
constinit std::atomic<unsigned> utilization{0};

std::vector<ProcessHolding> processes_of(int gpu) {
    if (environment_is("CURB_SIM_NVML", "nopids")) return {};
    return machine()->processes(gpu);
}

}  // namespace

#define NVML_EXPORT extern "C" __attribute__((visibility("default")))

NVML_EXPORT nvmlReturn_t nvmlInit_v2(void) {
    may_hang("init");
    if (const int fault = fault_in_file("nvmlInit_v2")) return static_cast<nvmlReturn_t>(fault);
    const std::lock_guard lock(state);
    static bool failed = false;
    if (environment_is("CURB_SIM_NVML", "late") && !std::exchange(failed, true)) return NVML_ERROR_UNKNOWN;
    if (!machine() || environment_is("CURB_SIM_NVML", "broken")) return NVML_ERROR_UNKNOWN;
    if (users++ == 0) spend_time_of("nvmlInit_v2", 0);
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlShutdown(void) {
    const std::lock_guard lock(state);
    if (!users) return NVML_ERROR_UNINITIALIZED;
    --users;
    return NVML_SUCCESS;
}

NVML_EXPORT const char *nvmlErrorString(nvmlReturn_t result) {
    switch (result) {
        case NVML_SUCCESS: return "Success";
        case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
        case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
        case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
        case NVML_ERROR_NO_PERMISSION: return "Insufficient Permissions";
        case NVML_ERROR_NOT_FOUND: return "Not Found";
        case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
        case NVML_ERROR_ARGUMENT_VERSION_MISMATCH: return "Version Mismatch";
        case NVML_ERROR_UNKNOWN: return "Unknown Error";
    }
    return "Unknown Error";
}

NVML_EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length) {
    return ready(version, [=] { return write(version, length, kDriverVersion); });
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count) {
    return ready(count, [=] {
        *count = static_cast<unsigned>(machine()->device_count());
        return NVML_SUCCESS;
    });
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *out) {
    const nvmlReturn_t result = first_that(out, [=](int device) { return static_cast<unsigned>(device) == index; });
    return result == NVML_ERROR_NOT_FOUND ? NVML_ERROR_INVALID_ARGUMENT : result;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *out) {
    if (!uuid) return NVML_ERROR_INVALID_ARGUMENT;
    int instance = -1;
    const nvmlReturn_t result = first_that(out, [&](int gpu) {
        if (mig_mode() && mig_uuid_text(gpu) == uuid) instance = gpu;
        return instance == gpu || gpu_uuid_text(gpu) == uuid;
    });
    if (result == NVML_SUCCESS && instance >= 0) *out = instance_of(instance);
    return result;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *out) {
    if (!id) return NVML_ERROR_INVALID_ARGUMENT;
    return first_that(out, [=](int device) { return is_pci_bus_id(id, device); });
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t handle, unsigned *index) {
    return of_gpu(handle, index, [=](int gpu) {
        *index = static_cast<unsigned>(gpu);
        return NVML_SUCCESS;
    });
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t handle, char *uuid, unsigned length) {
    return of_gpu(handle, uuid, [=](int gpu) {
        return write(uuid, length, is_instance(handle) ? mig_uuid_text(gpu) : gpu_uuid_text(gpu));
    });
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t handle, char *name, unsigned length) {
    return of_gpu(handle, name, [=](int) { return write(name, length, device_name()); });
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t handle, nvmlPciInfo_t *info) {
    return of_gpu(handle, info, [=](int gpu) {
        *info = {};
        info->bus = static_cast<unsigned>(pci_bus(gpu));
        info->pciDeviceId = 0x2330'10de;  // H100 SXM5
        std::snprintf(info->busIdLegacy, sizeof info->busIdLegacy, "0000:%02X:00.0", info->bus & 0xffU);
        std::snprintf(info->busId, sizeof info->busId, "00000000:%02X:00.0", info->bus & 0xffU);
        return NVML_SUCCESS;
    });
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t handle, nvmlMemory_t *memory) {
    may_hang("memory");
    return of_gpu(handle, memory, [=](int gpu) {
        if (is_unified()) return NVML_ERROR_NOT_SUPPORTED;
        const DeviceMemory now = machine()->memory(gpu);
        *memory = {.total = now.total + kReserved, .free = now.free(), .used = now.used + kReserved};
        spend_time_of("nvmlDeviceGetMemoryInfo", 0);
        return NVML_SUCCESS;
    });
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t handle, nvmlMemory_v2_t *memory) {
    return of_gpu(handle, memory, [=](int gpu) {
        if (memory->version != nvmlMemory_v2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
        if (is_unified()) return NVML_ERROR_NOT_SUPPORTED;
        const DeviceMemory now = machine()->memory(gpu);
        *memory = {.version = memory->version,
                   .total = now.total + kReserved,
                   .reserved = kReserved,
                   .free = now.free(),
                   .used = now.used};
        spend_time_of("nvmlDeviceGetMemoryInfo", 0);
        return NVML_SUCCESS;
    });
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t handle, nvmlUtilization_t *out) {
    return of_gpu(handle, out, [=](int) {
        *out = {.gpu = utilization.load(), .memory = 0};
        return NVML_SUCCESS;
    });
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t handle, nvmlTemperatureSensors_t /*sensor*/,
                                                  unsigned *degrees) {
    return of_gpu(handle, degrees, [=](int) {
        *degrees = 34;
        return NVML_SUCCESS;
    });
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t handle, unsigned *milliwatts) {
    return of_gpu(handle, milliwatts, [=](int) {
        *milliwatts = 76'000;
        return NVML_SUCCESS;
    });
}

namespace {

// `count` comes in as the capacity of `out` and goes out as the number of processes.
nvmlReturn_t list(nvmlDevice_t handle, unsigned *count, nvmlProcessInfo_t *out, bool any,
                  const char *name = __builtin_FUNCTION()) {
    const auto answer = [=](int gpu) {
        if (environment_is("CURB_SIM_NVML", "nolist")) return NVML_ERROR_NOT_SUPPORTED;
        if (*count && !out) return NVML_ERROR_INVALID_ARGUMENT;
        const auto processes = any ? processes_of(gpu) : std::vector<ProcessHolding>{};
        const unsigned room = *count;
        *count = static_cast<unsigned>(processes.size());
        if (environment_is("CURB_SIM_NVML", "crowd")) *count = 40'000'000;
        if (room < *count) return NVML_ERROR_INSUFFICIENT_SIZE;
        // For a divided GPU, NVML lists the processes without their memory; its instances have the figures. So it does
        // for one that shares the host's memory.
        const bool divided = mig_mode(), is_known = divided ? is_instance(handle) : !is_unified();
        const bool absurd = environment_is("CURB_SIM_NVML", "absurd");
        std::transform(processes.begin(), processes.end(), out, [=](const ProcessHolding &process) {
            return nvmlProcessInfo_t{.pid = static_cast<unsigned>(process.pid),
                                     .usedGpuMemory = absurd     ? 1ULL << 60
                                                      : is_known ? process.holding.held()
                                                                 : NVML_VALUE_NOT_AVAILABLE,
                                     .gpuInstanceId = divided ? 1 : ~0u,
                                     .computeInstanceId = divided ? 0 : ~0u};
        });
        spend_time_of("nvmlDeviceGetComputeRunningProcesses_v3", 0);
        return NVML_SUCCESS;
    };
    return of_gpu(handle, count, answer, name);
}

}  // namespace

NVML_EXPORT void curb_sim_set_nvml_hangs(int does) { hangs.store(does != 0, std::memory_order_relaxed); }
NVML_EXPORT unsigned curb_sim_process_lists(void) { return process_lists.load(std::memory_order_relaxed); }
NVML_EXPORT void curb_sim_set_utilization(unsigned percent) { utilization.store(percent, std::memory_order_relaxed); }

// Returns one sample, of now, for each process that holds memory. NOT_FOUND if there is none, NOT_SUPPORTED for a
// divided GPU, as the real NVML.
NVML_EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t handle, nvmlProcessUtilizationSample_t *out,
                                                         unsigned *count, unsigned long long since) {
    return of_gpu(handle, count, [=](int gpu) {
        if (mig_mode() || environment_is("CURB_SIM_NVML", "nolist")) return NVML_ERROR_NOT_SUPPORTED;
        const auto clock = std::chrono::system_clock::now().time_since_epoch();
        const auto now =
            static_cast<unsigned long long>(std::chrono::duration_cast<std::chrono::microseconds>(clock).count());
        const auto processes = processes_of(gpu);
        if (processes.empty() || now <= since) return NVML_ERROR_NOT_FOUND;
        const unsigned room = out ? *count : 0;
        *count = static_cast<unsigned>(processes.size());
        if (room < *count) return NVML_ERROR_INSUFFICIENT_SIZE;
        std::transform(processes.begin(), processes.end(), out, [=](const ProcessHolding &process) {
            return nvmlProcessUtilizationSample_t{.pid = static_cast<unsigned>(process.pid),
                                                  .timeStamp = now,
                                                  .smUtil = process.pid == own_pid() ? utilization.load() : 0,
                                                  .memUtil = 0,
                                                  .encUtil = 0,
                                                  .decUtil = 0};
        });
        return NVML_SUCCESS;
    });
}

// CURB_SIM_SOFT_LIMIT=BYTES: the limit of every cgroup, in which all processes of the machine are.
NVML_EXPORT nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t handle, nvmlGetMemoryLimits_v1_t *out) {
    return of_gpu(handle, out, [=](int gpu) {
        const char *limit = std::getenv("CURB_SIM_SOFT_LIMIT");
        if (!limit || mig_mode()) return limit ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_NOT_FOUND;
        if (!std::string_view(out->nameSpace).starts_with("/sys/fs/cgroup/")) return NVML_ERROR_NOT_FOUND;
        out->softLimit = std::strtoull(limit, nullptr, 10);
        out->hardLimit = ~0ULL;
        out->currentUsed = 0;
        for (const ProcessHolding &process : machine()->processes(gpu)) out->currentUsed += process.holding.held();
        return NVML_SUCCESS;
    });
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t handle, unsigned *count,
                                                                 nvmlProcessInfo_t *out) {
    const nvmlReturn_t result = list(handle, count, out, true);
    process_lists.fetch_add(1, std::memory_order_relaxed);
    may_hang("processes");
    return result;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t handle, unsigned *count,
                                                                    nvmlProcessInfo_t *out) {
    return list(handle, count, out, environment_is("CURB_SIM_MPS", "1"));
}

// The older names of these lists, which drivers before 510 have alone.
#define SIM_OLDER_LIST(name)                                                                          \
    NVML_EXPORT nvmlReturn_t name##_v2(nvmlDevice_t handle, unsigned *count, nvmlProcessInfo_t *out); \
    nvmlReturn_t name##_v2(nvmlDevice_t handle, unsigned *count, nvmlProcessInfo_t *out) {            \
        return name##_v3(handle, count, out);                                                         \
    }
SIM_OLDER_LIST(nvmlDeviceGetComputeRunningProcesses)
SIM_OLDER_LIST(nvmlDeviceGetMPSComputeRunningProcesses)
SIM_OLDER_LIST(nvmlDeviceGetGraphicsRunningProcesses)

NVML_EXPORT nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t handle, unsigned *on) {
    return of_gpu(handle, on, [=](int) {
        *on = !environment_is("CURB_SIM_PERSISTENCE", "off");
        return NVML_SUCCESS;
    });
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t handle, unsigned *current, unsigned *pending) {
    return of_gpu(handle, current, [=](int) {
        if (!pending) return NVML_ERROR_INVALID_ARGUMENT;
        *current = *pending = mig_mode();
        return NVML_SUCCESS;
    });
}

// There is no display.
NVML_EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t handle, unsigned *count,
                                                                  nvmlProcessInfo_t *out) {
    return list(handle, count, out, false);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t handle, unsigned *count) {
    return of_gpu(handle, count, [=](int) {
        *count = 7;
        return NVML_SUCCESS;
    });
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t handle, unsigned index, nvmlDevice_t *out) {
    return of_gpu(handle, out, [=](int gpu) {
        if (!mig_mode() || is_instance(handle) || index != 0) return NVML_ERROR_NOT_FOUND;
        *out = instance_of(gpu);
        return NVML_SUCCESS;
    });
}
