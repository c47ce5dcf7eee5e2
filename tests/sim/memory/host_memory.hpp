// Pinned host memory.
#pragma once

#include <cstdint>

#include "abi/cuda_abi.h"

namespace curb::sim {

// Finds the range that contains `address`. False if there is none.
bool is_pinned_host(CUdeviceptr address, CUdeviceptr *start, uint64_t *bytes);

}  // namespace curb::sim
