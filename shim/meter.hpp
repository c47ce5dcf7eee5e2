// The device's own figures, from NVML: what stands in nvidia-smi. The truth that the books are held against.
//
// NVML is loaded at the first question (6 to 9 ms) and never closed. Thread-safe.
#pragma once

#include <atomic>
#include <optional>

#include "cuda_abi.h"
#include "policy/size.hpp"

struct nvmlDevice_st;

namespace curb::shim {

using policy::Bytes;

// One device as NVML sees it.
class Meter {
  public:
    // Once, before the first reading.
    void identify(const CUuuid &device) noexcept { uuid_ = device; }

    // What this process holds, managed memory not counted (11 us on an H200). None: NVML is not there or does not see
    // the process (another pid namespace, MIG).
    std::optional<Bytes> held_by_process() noexcept;
    // What everybody holds. None: NVML is not there.
    std::optional<Bytes> used_by_all() noexcept;

  private:
    nvmlDevice_st *device() noexcept;

    CUuuid uuid_{};
    std::atomic<nvmlDevice_st *> device_{nullptr};
};

}  // namespace curb::shim
