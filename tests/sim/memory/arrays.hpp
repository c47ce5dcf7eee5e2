// CUDA arrays and mipmapped arrays: memory in a context's granules, reached by handle.
#pragma once

#include "abi/cuda_abi.h"

namespace curb::sim {

// Throws CUDA_ERROR_INVALID_HANDLE if there is no such array.
void check_array(CUarray handle);
// Forgets the arrays of a context that ends. The context's heap gives the memory back.
void forget_arrays_of(CUcontext context);

}  // namespace curb::sim
