// The driver's checkpoint calls, and this machine's GPUs by NVML. curb loads both libraries at run time, so that it
// starts without them and can report that they are missing.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "abi/cuda_abi.h"
#include "policy/values/result.hpp"
#include "policy/values/size.hpp"

namespace curb::cli {

inline constexpr int kFirstWithCheckpoint = 12080;  // CUDA of driver 570
#define CURB_CHECKPOINT_CALLS(X)     \
    X(cuCheckpointProcessGetState)   \
    X(cuCheckpointProcessLock)       \
    X(cuCheckpointProcessCheckpoint) \
    X(cuCheckpointProcessRestore)    \
    X(cuCheckpointProcessUnlock)

struct Driver {
#define CURB_SLOT(name) decltype(&::name) name = nullptr;
    CURB_SLOT(cuInit)
    CURB_SLOT(cuDriverGetVersion)
    CURB_SLOT(cuDeviceGetCount)
    CURB_SLOT(cuDeviceGetAttribute)
    CURB_SLOT(cuGetErrorName)
    CURB_SLOT(cuGetErrorString)
    CURB_CHECKPOINT_CALLS(CURB_SLOT)
#undef CURB_SLOT
    int version = 0;              // of cuDriverGetVersion: 13000; 0: not known
    bool has_checkpoint = false;  // it exports all checkpoint calls

    // Returns "CUDA_ERROR_NOT_READY (device not ready)".
    [[nodiscard]] std::string text(CUresult result) const;
};

// Loads the driver without initialising it. The error says why it cannot be loaded.
policy::Result<Driver, std::string> load_driver();
// Loads and initialises the driver. Takes seconds if no GPU has persistence mode on (nvidia-smi -pm 1). Does not
// initialise a driver without the checkpoint calls. The error has the remedy.
policy::Result<Driver, std::string> open_driver();

struct GpuUser {
    int pid = 0;
    std::string text;                   // "4711 (python3)"
    std::optional<policy::Bytes> held;  // nullopt: not known (on a MIG GPU NVML reports it to some users only)
};

struct GpuState {
    int index = 0;  // nvidia-smi's; of an instance: among those of its GPU
    std::string uuid;
    std::string name;  // "NVIDIA H100 80GB HBM3"; empty: not known
    policy::Bytes total = 0, free = 0;
    policy::Bytes used = 0;  // by all processes, as nvidia-smi shows it: without the memory that the driver reserves
    bool shares_host_memory = false;  // the figures are those of the host: NVML has none
    bool lists_processes = true;      // false: NVML does not support it here, as on WSL2
    bool mig = false;
    bool kept_awake = true;               // persistence mode; true if not known
    std::optional<unsigned> utilization;  // percent of the last moments in which a kernel ran; nullopt: not known
    std::optional<unsigned> temperature;  // degrees Celsius; nullopt: not known
    std::vector<GpuUser> users;
    std::vector<int> mps_clients;
    std::vector<GpuState> instances;  // of a MIG GPU, if NVML can list them

    // Returns null if NVML does not list the process.
    [[nodiscard]] const GpuUser *user(int pid) const;
    [[nodiscard]] bool is_mps_client(int pid) const;
};

// Returns the users of these GPUs and of their instances. A process on several of them is in the list several times.
std::vector<const GpuUser *> users_of(const std::vector<GpuState> &gpus);
// Returns the GPU with this UUID. Returns null if it is not there.
const GpuState *gpu_with(const std::vector<GpuState> &gpus, const std::string &uuid);
// Returns the bytes that the process holds of the GPU with this UUID. 0 if NVML reports none.
policy::Bytes held_on(const std::vector<GpuState> &gpus, const std::string &uuid, int pid);

// Returns this machine's GPUs, or the error of NVML. If NVML cannot be used at all, the error has the remedy. If NVML
// does not return, the error says so after kDriverPatience, and at once until it has returned. One thread at a time.
using NvmlGpus = policy::Result<std::vector<GpuState>, std::string>;
NvmlGpus nvml_gpus();
// Why NVML says of no process what it holds, where it does not support that.
inline constexpr const char *kListsNone = "NVML lists no processes here, as on WSL2";
// Returns "580.159.04". Empty if NVML does not report it, or does not return: then as nvml_gpus().
std::string nvml_driver_version();

}  // namespace curb::cli
