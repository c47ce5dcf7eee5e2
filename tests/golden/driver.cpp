// The driver of tests/bench that does nothing, and what else the paths here need of one.

#include "../bench/noop_driver.cpp"

// Weak: where that driver has them itself, they are its own.
__attribute__((weak)) CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
                                           const CUmemAllocationProp *, unsigned long long) {
    *handle = bytes;
    return CUDA_SUCCESS;
}
__attribute__((weak)) CUresult cuMemRelease(CUmemGenericAllocationHandle) { return CUDA_SUCCESS; }
