// Stream-ordered pools. A pool reserves device memory in units. It keeps freed memory until it is trimmed, or until a
// synchronisation finds it above its release threshold. It gives back only memory whose free the host has seen complete
// (docs/results/driver.md).
#pragma once

#include <cstdint>
#include <map>

#include "abi/cuda_abi.h"
#include "machine.hpp"
#include "streams.hpp"

namespace curb::sim {

// The unit in which a pool grows and gives back (docs/results/driver.md).
inline constexpr uint64_t kPoolUnit = 32 * kMiB;

struct Pool {
    explicit Pool(const CUmemPoolProps &its_properties);
    Pool(const Pool &) = delete;
    Pool &operator=(const Pool &) = delete;
    ~Pool();

    CUdeviceptr take(uint64_t bytes, const Stream &stream);
    // `stream` null: the device has finished with it (cuMemFree).
    void give(CUdeviceptr start, const Stream *stream);
    void seen_complete(const Progress &progress);
    void all_seen_complete();
    // Gives back units that are free and seen complete until no more than `keep` bytes are reserved.
    void trim(uint64_t keep);

    bool on_device() const {
        return properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
               properties.allocType == CU_MEM_ALLOCATION_TYPE_PINNED;
    }
    // True for managed memory of a device, which NVML does not count, as with cuMemAllocManaged.
    bool managed_on_device() const {
        return properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
               properties.allocType == CU_MEM_ALLOCATION_TYPE_MANAGED;
    }
    bool is_of(int device) const { return on_device() && properties.location.id == device; }

    static constexpr CUresult kUnknown = CUDA_ERROR_INVALID_VALUE;
    CUmemoryPool handle = nullptr;
    CUmemPoolProps properties;
    bool is_default = false;
    bool imported = false;  // another process's: nothing can be allocated from it
    int file = -1;          // backs it if it can be exported
    uint64_t release_threshold = 0;
    int reuse_follow_events = 1;
    int reuse_opportunistic = 1;
    int reuse_internal = 1;
    uint64_t reserved = 0, reserved_high = 0;
    uint64_t used = 0, used_high = 0;
    std::map<int, CUmemAccess_flags> access;  // of other devices

    struct Free {
        uint64_t size;
        uint64_t stream_id;  // 0: seen complete
        uint64_t ticket;
    };
    std::map<CUdeviceptr, Free> free;
    std::map<CUdeviceptr, uint64_t> live;
    // The units that the pool holds, as ranges, and where each begins in `file`.
    struct Range {
        uint64_t size;
        uint64_t offset;
        uint64_t shared_id = 0;  // Machine::share(); 0: no block in it has been exported
    };
    std::map<CUdeviceptr, Range> ranges;

  private:
    void grow(uint64_t size);
    void insert_free(CUdeviceptr start, Free block);
    bool usable(const Free &block, const Stream &stream) const;
    void give_units(CUdeviceptr start, uint64_t size);
    uint64_t file_size_ = 0;
};

// For an allocation that found the device full: gives back memory that pools keep unused and that the host has seen
// complete (docs/results/driver.md). False if there was none.
bool reclaim_from_pools(int device);
// After a synchronisation of any kind on the device: pools above their threshold give back what they can.
void release_above_thresholds(int device);
// Frees an allocation of a pool, and the pool if it is destroyed and this was its last one. `stream` null: from
// cuMemFree.
void free_pool_allocation(CUdeviceptr start, const Stream *stream);
void make_default_pools();

}  // namespace curb::sim
