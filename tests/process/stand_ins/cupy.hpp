// Stands in for cupy/cuda/memory.so: its name, its frames on the stack, and its answer to a refusal. A pool frees its
// cache and asks once more; other calls fail.
#pragma once

#include <cstddef>

#include "abi/cuda_abi.h"

namespace cupy {

// The Python interpreter, whose frames are between most of CuPy's. Calls `function`.
using Function = CUresult(CUdeviceptr *pointer, std::size_t bytes);
extern CUresult (*interpreter)(Function *function, CUdeviceptr *pointer, std::size_t bytes);

CUresult runtime_malloc(CUdeviceptr *pointer, std::size_t bytes);
CUresult alloc_without_pool(CUdeviceptr *pointer, std::size_t bytes);
CUresult alloc_from_pool(CUdeviceptr *pointer, std::size_t bytes);
void free_to_pool(CUdeviceptr pointer);
int refusals();  // how many refusals the pool has answered

}  // namespace cupy
