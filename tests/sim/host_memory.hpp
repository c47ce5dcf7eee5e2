// Which host memory the driver knows.
#pragma once

#include <cstdint>

#include "cuda_abi.h"

namespace curb::sim {

bool is_pinned_host(CUdeviceptr address, CUdeviceptr *start, uint64_t *bytes);

}  // namespace curb::sim
