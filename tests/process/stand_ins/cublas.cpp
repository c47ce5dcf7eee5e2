// Stands in for libcublas.so.13, which contains a runtime and returns an error after a refusal.
#include <cstddef>

#include "abi/cuda_abi.h"

namespace {
[[gnu::noinline]] CUresult runtime(CUdeviceptr *pointer, std::size_t bytes) { return cuMemAlloc_v2(pointer, bytes); }
[[gnu::noinline]] CUresult prepare(CUdeviceptr *pointer, std::size_t bytes) { return runtime(pointer, bytes); }
}  // namespace

extern "C" CUresult cublas_workspace(CUdeviceptr *pointer, std::size_t bytes) { return prepare(pointer, bytes); }
