// The driver as a program finds it: libcuda.so.1 by dlopen, its functions by dlsym. The probe is not linked with a CUDA
// library, so the environment alone selects the driver and the preload. And the same functions at the driver's own
// addresses, as the base of comparison.
#pragma once

#include <stdexcept>
#include <string>

#include "abi/cuda_abi.h"

namespace bench {

// The text says which call failed, or what is missing.
struct Cannot : std::runtime_error {
    using std::runtime_error::runtime_error;
};

#define BENCH_FUNCTIONS(FUNCTION)         \
    FUNCTION(cuInit)                      \
    FUNCTION(cuDevicePrimaryCtxRetain)    \
    FUNCTION(cuCtxSetCurrent)             \
    FUNCTION(cuDeviceGetDefaultMemPool)   \
    FUNCTION(cuGraphCreate)               \
    FUNCTION(cuGraphInstantiateWithFlags) \
    FUNCTION(cuGraphLaunch)               \
    FUNCTION(cuLaunchKernel)              \
    FUNCTION(cuMemAlloc_v2)               \
    FUNCTION(cuMemAllocAsync)             \
    FUNCTION(cuMemcpyHtoDAsync_v2)        \
    FUNCTION(cuMemFree_v2)                \
    FUNCTION(cuMemFreeAsync)              \
    FUNCTION(cuMemGetInfo_v2)             \
    FUNCTION(cuMemPoolSetAttribute)       \
    FUNCTION(cuModuleGetFunction)         \
    FUNCTION(cuModuleLoadData)            \
    FUNCTION(cuStreamCreate)              \
    FUNCTION(cuStreamSynchronize)

struct Driver {
#define BENCH_MEMBER(name) decltype(&::name) name = nullptr;
    BENCH_FUNCTIONS(BENCH_MEMBER)
#undef BENCH_MEMBER
    CUcontext context = nullptr;  // the primary context of device 0
};

// Returns the driver, initialised. Makes its context current in the calling thread. Throws Cannot.
const Driver &driver();

// Returns the default pool of device 0.
CUmemoryPool default_pool();
// Makes that pool keep all freed memory, as frameworks do.
void keep_in_pool();

// The driver's own functions (direct.cpp), without any preload. Without a preload they are those of driver(). They must
// free the memory that they allocate.
struct Direct {
    Driver functions;
    std::string missing;  // the function that was not found; empty: none
};
const Direct &direct();

// Throws Cannot, with the name of the call, unless the result is CUDA_SUCCESS.
inline void must(CUresult result, const char *call) {
    if (result != CUDA_SUCCESS) [[unlikely]]
        throw Cannot(std::string(call) + " returned " + std::to_string(static_cast<int>(result)));
}

}  // namespace bench
