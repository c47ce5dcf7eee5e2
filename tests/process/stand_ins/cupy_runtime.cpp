// cupy_backends/cuda/api/runtime.so, with the CUDA runtime within, as far as its place on the stack goes.
#include "cupy.hpp"

namespace {
[[gnu::noinline]] CUresult runtime(CUdeviceptr *pointer, std::size_t bytes) { return cuMemAlloc_v2(pointer, bytes); }
}  // namespace

CUresult cupy::runtime_malloc(CUdeviceptr *pointer, std::size_t bytes) { return runtime(pointer, bytes); }
