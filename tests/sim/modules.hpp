// Modules, libraries and kernels: handles, and the device memory that loaded code takes. Kernels do nothing.
#pragma once

#include "cuda_abi.h"

namespace curb::sim {

void unload_modules_of(CUcontext context);

}  // namespace curb::sim
