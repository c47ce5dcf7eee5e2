// The driver's calls for whole processes, looked up at run time. curb links neither the driver nor NVML, so that it
// starts without them and can report that they are missing.
#pragma once

#include <memory>
#include <string>

#include "cuda_abi.h"
#include "policy/result.hpp"

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
    CURB_SLOT(cuGetErrorName)
    CURB_SLOT(cuGetErrorString)
    CURB_CHECKPOINT_CALLS(CURB_SLOT)
#undef CURB_SLOT
    int version = 0;              // as cuDriverGetVersion says it: 13000; 0: it does not
    bool has_checkpoint = false;  // all the calls are there

    // "CUDA_ERROR_NOT_READY (device not ready)"
    [[nodiscard]] std::string text(CUresult result) const;
};

// Loads the driver without initialising it. The error says why it cannot be loaded.
policy::Result<Driver, std::string> load_driver();
// Loads and initialises the driver. Takes seconds if no GPU is kept awake (nvidia-smi -pm 1). Does not initialise a
// driver without the checkpoint calls. The error has the remedy.
policy::Result<Driver, std::string> open_driver();

}  // namespace curb::cli
