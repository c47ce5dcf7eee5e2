// Stands in for libcudart.so.13: its name and its frames on the stack.
#include <cstddef>

#include "abi/cuda_abi.h"

extern "C" CUresult cudaMalloc(CUdeviceptr *pointer, std::size_t bytes) { return cuMemAlloc_v2(pointer, bytes); }
extern "C" CUresult cudaFree(CUdeviceptr pointer) { return cuMemFree_v2(pointer); }
