// Stands in for cupy_backends/cuda/api/runtime.so, which contains the CUDA runtime: its frames on the stack.
#include "cupy.hpp"

namespace {
[[gnu::noinline]] CUresult runtime(CUdeviceptr *pointer, std::size_t bytes) { return cuMemAlloc_v2(pointer, bytes); }
}  // namespace

CUresult cupy::runtime_malloc(CUdeviceptr *pointer, std::size_t bytes) { return runtime(pointer, bytes); }
