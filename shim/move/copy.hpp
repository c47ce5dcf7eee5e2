// Copies chunks between a GPU and host memory: each thread has pinned buffers and streams of its own, and copies one
// buffer by the processor while the GPU serves the other. (Pinning the whole takes longer than moving it: 2.3 GiB/s on
// an H200, where these threads copy 49.)
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "abi/cuda_abi.h"
#include "move/host_memory.hpp"
#include "policy/decisions/move.hpp"

namespace curb::shim::move {

struct Copies {
    CUcontext context = nullptr;                    // its device has the memory
    std::vector<CUdeviceptr> addresses;             // of the blocks
    std::vector<std::vector<policy::Part>> chunks;  // chunk i is at host.chunk(i)
    HostMemory host;
};

// Each returns true if all has been copied. Calls the driver behind the gate, on threads of curb's that have ended when
// it returns. One at a time. May throw std::bad_alloc before it begins.

// Asks `may_go_on` now and then, and stops without an end if that is false.
bool copy_out(const Copies &copies, unsigned threads, const std::function<bool()> &may_go_on);
// `map(i)` makes block i accessible, in turn for each, while the blocks before it are copied. Stops if it is false.
bool copy_in(const Copies &copies, unsigned threads, const std::function<bool(std::size_t)> &map);

}  // namespace curb::shim::move
