// Virtual memory management: physical allocations with references and mappings, freed when both are gone
// (cuda.h, cuMemRelease). Address reservations take no memory.
#pragma once

#include <cstdint>
#include <map>

#include "abi/cuda_abi.h"

namespace curb::sim {

struct VmmAllocation {
    ~VmmAllocation();  // gives the memory back

    static constexpr CUresult kUnknown = CUDA_ERROR_INVALID_VALUE;
    CUmemGenericAllocationHandle handle = 0;
    CUmemAllocationProp properties{};
    uint64_t size = 0;
    int references = 1;
    int mappings = 0;
    bool charged = false;   // to this process; not if another one has created it
    bool exported = false;  // the machine knows it by its inode
    bool opened = false;    // another process's
    // The place of its contents: a file of its own if it can be exported, else at an offset in the one that all share
    // (a file each would run programs that map many small pieces out of descriptors).
    int file = -1;
    uint64_t offset = 0;
    uint64_t inode = 0;

    bool on_device() const {
        return properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
               properties.type == CU_MEM_ALLOCATION_TYPE_PINNED;
    }
};

// For memory mapped to something other than an address. add_mapping() needs a handle with references, end_mapping()
// does not.
void add_mapping(CUmemGenericAllocationHandle handle);
void end_mapping(CUmemGenericAllocationHandle handle);

// Returns the first address from `at` on, at most `end`, that may have other contents than zeros: memory that was never
// written has no pages in its file.
CUdeviceptr next_contents(CUdeviceptr at, CUdeviceptr end);

struct VmmBooks {
    std::map<CUdeviceptr, uint64_t> reservations;  // start -> size
    int shared_file = -1;
    uint64_t shared_end = 0;
    std::multimap<uint64_t, uint64_t> shared_free;  // size -> offset
};

}  // namespace curb::sim
