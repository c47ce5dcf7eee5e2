// libcublas.so.13, with a runtime of its own inside: it takes a refusal for an error.
#include <cstddef>

#include "cuda_abi.h"

namespace {
[[gnu::noinline]] CUresult runtime(CUdeviceptr *pointer, std::size_t bytes) { return cuMemAlloc_v2(pointer, bytes); }
[[gnu::noinline]] CUresult prepare(CUdeviceptr *pointer, std::size_t bytes) { return runtime(pointer, bytes); }
}  // namespace

extern "C" CUresult cublas_workspace(CUdeviceptr *pointer, std::size_t bytes) { return prepare(pointer, bytes); }
