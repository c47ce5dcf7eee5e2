// Properties of mapped memory, pools and nodes of graphs, as most tests ask the driver for them.
#pragma once

#include <cstddef>
#include <cstring>

#include "cuda_abi.h"

namespace families {

// All bytes of these structures are zero but for the members that are set: a driver may look at the padding.
inline CUmemAllocationProp on_device(int device, CUmemAllocationHandleType handle = CU_MEM_HANDLE_TYPE_NONE) {
    CUmemAllocationProp out;
    std::memset(&out, 0, sizeof out);
    out.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    out.requestedHandleTypes = handle;
    out.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    return out;
}

inline CUmemPoolProps pool_on(CUmemLocationType where, int id,
                              CUmemAllocationHandleType handle = CU_MEM_HANDLE_TYPE_NONE,
                              CUmemAllocationType type = CU_MEM_ALLOCATION_TYPE_PINNED) {
    CUmemPoolProps out;
    std::memset(&out, 0, sizeof out);
    out.allocType = type;
    out.handleTypes = handle;
    out.location = {where, id};
    return out;
}

inline CUDA_MEM_ALLOC_NODE_PARAMS memory_node(std::size_t bytes, int device = 0) {
    CUDA_MEM_ALLOC_NODE_PARAMS out;
    std::memset(&out, 0, sizeof out);
    out.poolProps = pool_on(CU_MEM_LOCATION_TYPE_DEVICE, device);
    out.bytesize = bytes;
    return out;
}

}  // namespace families
