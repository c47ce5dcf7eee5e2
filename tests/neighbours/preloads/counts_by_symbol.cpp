// Another shim of the driver: it exports two functions, counts their calls, and finds the next ones by RTLD_NEXT.

#include <atomic>

#include "abi/cuda_abi.h"
#include "preload.hpp"

namespace {

constinit std::atomic<unsigned long> allocated{0}, freed{0};

}  // namespace

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *pointer, std::size_t bytes) {
    static constinit std::atomic<decltype(&cuMemAlloc_v2)> known{nullptr};
    const CUresult result = next(known, "cuMemAlloc_v2")(pointer, bytes);
    if (result == CUDA_SUCCESS) ++allocated;
    return result;
}
EXPORT CUresult cuMemFree_v2(CUdeviceptr pointer) {
    static constinit std::atomic<decltype(&cuMemFree_v2)> known{nullptr};
    const CUresult result = next(known, "cuMemFree_v2")(pointer);
    if (result == CUDA_SUCCESS) ++freed;
    return result;
}

__attribute__((destructor)) static void at_end() {
    mark("allocated", allocated);
    mark("freed", freed);
}
