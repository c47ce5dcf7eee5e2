// A plugin that looks the driver's functions up and keeps them in variables, as CUDA's static runtime does.
#include <dlfcn.h>

#include "abi/cuda_abi.h"

namespace {
decltype(&cuMemAlloc_v2) volatile allocate = nullptr;  // volatile, or the compiler drops the variable
}

extern "C" __attribute__((visibility("default"))) int plugin_allocates() {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) return 1;
    allocate = reinterpret_cast<decltype(&cuMemAlloc_v2)>(dlsym(driver, "cuMemAlloc_v2"));
    CUdeviceptr block = 0;
    return allocate ? allocate(&block, 64 << 20) : 1;
}
