// Device addresses: ranges of host address space, so that copies really copy. The operating system backs a page when it
// is first written and takes it back when its range is given back.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "abi/cuda_abi.h"
#include "ranges.hpp"

namespace curb::sim {

class AddressSpace {
  public:
    // Takes a range, at `wish` if that is free. `size` and `alignment` are multiples of 2 MiB. Returns 0 if the host
    // refuses.
    CUdeviceptr take(uint64_t size, uint64_t alignment, CUdeviceptr wish = 0);
    // The range must be private again (see unshare).
    void give(CUdeviceptr start, uint64_t size);
    // Returns whether this is a device address. All others are host addresses.
    bool contains(CUdeviceptr address) const;

  private:
    bool grow(uint64_t size);

    Ranges free_;
    std::vector<std::pair<CUdeviceptr, uint64_t>> arenas_;
};

// Maps `size` bytes of `file` from `offset` over a taken range. False if the host refuses.
bool share(CUdeviceptr start, uint64_t size, int file, uint64_t offset);
// Makes the range private memory again.
void unshare(CUdeviceptr start, uint64_t size);
void drop_contents(CUdeviceptr start, uint64_t size);
// Fills the range with zeros by taking its pages back. False if it has not: they are not all whole pages of a file.
bool empty(CUdeviceptr start, uint64_t size);

inline void *host(CUdeviceptr address) {
    return reinterpret_cast<void *>(address);  // NOLINT(performance-no-int-to-ptr): CUDA's addresses are numbers
}

inline uint64_t round_up(uint64_t size, uint64_t unit) { return (size + unit - 1) / unit * unit; }
inline uint64_t round_down(uint64_t size, uint64_t unit) { return size / unit * unit; }

}  // namespace curb::sim
