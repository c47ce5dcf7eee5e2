// A plugin that finds the driver's functions itself and keeps them in its variables, as CUDA's static runtime does.
#include <dlfcn.h>

#include "cuda_abi.h"

namespace {
decltype(&cuMemAlloc_v2) volatile allocate = nullptr;  // or the compiler would keep it in no variable at all
}

extern "C" __attribute__((visibility("default"))) int plugin_allocates() {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) return 1;
    allocate = reinterpret_cast<decltype(&cuMemAlloc_v2)>(dlsym(driver, "cuMemAlloc_v2"));
    CUdeviceptr block = 0;
    return allocate ? allocate(&block, 64 << 20) : 1;
}
