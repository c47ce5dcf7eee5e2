// Device addresses: ranges of host address space, so that copies really copy. The operating system backs a page when it
// is first written and takes it back when its range is given back.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "cuda_abi.h"
#include "ranges.hpp"

namespace curb::sim {

class AddressSpace {
  public:
    // `size` and `alignment` are multiples of 2 MiB. At `wish` if that is free. 0: the host refused.
    CUdeviceptr take(uint64_t size, uint64_t alignment, CUdeviceptr wish = 0);
    // The range must be private again (see unshare).
    void give(CUdeviceptr start, uint64_t size);
    // Whether the address is a device's; all others are the host's.
    bool contains(CUdeviceptr address) const;

  private:
    bool grow(uint64_t size);

    Ranges free_;
    std::vector<std::pair<CUdeviceptr, uint64_t>> arenas_;
};

// Puts `size` bytes of `file` from `offset` at a taken range, and takes them away again. False: the host refused.
bool share(CUdeviceptr start, uint64_t size, int file, uint64_t offset);
void unshare(CUdeviceptr start, uint64_t size);
// Forgets contents.
void drop_contents(CUdeviceptr start, uint64_t size);

inline void *host(CUdeviceptr address) {
    return reinterpret_cast<void *>(address);  // NOLINT(performance-no-int-to-ptr): CUDA's addresses are numbers
}

inline uint64_t round_up(uint64_t size, uint64_t unit) { return (size + unit - 1) / unit * unit; }
inline uint64_t round_down(uint64_t size, uint64_t unit) { return size / unit * unit; }

}  // namespace curb::sim
