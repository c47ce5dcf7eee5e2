// Plain device memory. The driver backs it by granules of 2 MiB; blocks of up to 1 MiB share them
// (docs/results/driver.md: 10,000 blocks of 4 KiB take 40 MiB together, 1 MiB + 1 B takes 2 MiB, 2 MiB + 1 B takes 4
// MiB).
#pragma once

#include <cstdint>
#include <map>

#include "abi/cuda_abi.h"
#include "machine.hpp"
#include "ranges.hpp"

namespace curb::sim {

inline constexpr uint64_t kGranule = 2 * kMiB;
inline constexpr uint64_t kLargestShared = 1 * kMiB;
inline constexpr uint64_t kBlockAlignment = 512;
// No device has this much: keeps sums of sizes from overflowing.
inline constexpr uint64_t kAbsurd = uint64_t{1} << 48;

// One context's blocks of one use. Under the model's lock.
class GranuleHeap {
  public:
    GranuleHeap(int device, Use use) : device_(device), use_(use) {}
    GranuleHeap(const GranuleHeap &) = delete;
    GranuleHeap &operator=(const GranuleHeap &) = delete;
    // Gives everything back to the device.
    ~GranuleHeap();

    CUdeviceptr take(uint64_t bytes);
    // `start` is from take().
    void give(CUdeviceptr start);
    // The granules that hold the block, as IPC exports them.
    void extent(CUdeviceptr block, CUdeviceptr *start, uint64_t *size) const;

  private:
    struct Shared {
        Ranges free;
        std::map<CUdeviceptr, uint64_t> used;  // start -> size
    };

    CUdeviceptr take_granules(uint64_t size);
    void give_granules(CUdeviceptr start, uint64_t size);

    int device_;
    Use use_;
    std::map<CUdeviceptr, Shared> shared_;
    std::map<CUdeviceptr, uint64_t> large_;  // start -> size in granules
};

}  // namespace curb::sim
