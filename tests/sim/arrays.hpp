// CUDA arrays and mipmapped arrays: memory in a context's granules, reached by handle.
#pragma once

#include "cuda_abi.h"

namespace curb::sim {

// When the context goes; its heap gives the memory back.
void forget_arrays_of(CUcontext context);

}  // namespace curb::sim
