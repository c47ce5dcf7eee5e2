// Properties of mapped memory, pools and nodes of graphs, as most tests ask the driver for them.
#pragma once

#include <cstddef>
#include <cstring>

#include "abi/cuda_abi.h"

namespace families {

// Returns a structure whose bytes are all zero, padding included: a driver may look at that too.
template <class Struct>
Struct zeroed() {
    Struct out;
    std::memset(&out, 0, sizeof out);
    return out;
}

inline CUmemAllocationProp on_device(int device, CUmemAllocationHandleType handle = CU_MEM_HANDLE_TYPE_NONE) {
    auto out = zeroed<CUmemAllocationProp>();
    out.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    out.requestedHandleTypes = handle;
    out.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    return out;
}

inline CUmemPoolProps pool_on(CUmemLocationType where, int id,
                              CUmemAllocationHandleType handle = CU_MEM_HANDLE_TYPE_NONE,
                              CUmemAllocationType type = CU_MEM_ALLOCATION_TYPE_PINNED) {
    auto out = zeroed<CUmemPoolProps>();
    out.allocType = type;
    out.handleTypes = handle;
    out.location = {where, id};
    return out;
}

inline CUDA_MEM_ALLOC_NODE_PARAMS memory_node(std::size_t bytes, int device = 0) {
    auto out = zeroed<CUDA_MEM_ALLOC_NODE_PARAMS>();
    out.poolProps = pool_on(CU_MEM_LOCATION_TYPE_DEVICE, device);
    out.bytesize = bytes;
    return out;
}

}  // namespace families
