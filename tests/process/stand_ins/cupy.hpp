// cupy/cuda/memory.so, as far as its name, its frames on the stack and its answer to a refusal go: a pool frees all
// that it has cached and asks once more; nothing else does.
#pragma once

#include <cstddef>

#include "cuda_abi.h"

namespace cupy {

// The interpreter, which stands between most of CuPy's functions: calls `function`.
using Function = CUresult(CUdeviceptr *pointer, std::size_t bytes);
extern CUresult (*interpreter)(Function *function, CUdeviceptr *pointer, std::size_t bytes);

CUresult runtime_malloc(CUdeviceptr *pointer, std::size_t bytes);
CUresult alloc_without_pool(CUdeviceptr *pointer, std::size_t bytes);
CUresult alloc_from_pool(CUdeviceptr *pointer, std::size_t bytes);
void free_to_pool(CUdeviceptr pointer);
int refusals();  // that the pool has answered

}  // namespace cupy
