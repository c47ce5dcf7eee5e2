// Another shim of the driver. It also interposes dlsym, as shims that limit or trace GPU memory do: programs that open
// libcuda themselves reach it too.
#include <dlfcn.h>

#include <atomic>
#include <cstring>

#include "abi/cuda_abi.h"
#include "preload.hpp"

namespace {

constinit std::atomic<unsigned long> allocated{0}, freed{0};

template <class F>
F *drivers(std::atomic<F *> &known, const char *name) {
    if (!known) known = reinterpret_cast<F *>(next_dlsym()(dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD), name));
    return known;
}

}  // namespace

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *pointer, std::size_t bytes) {
    static constinit std::atomic<CUresult (*)(CUdeviceptr *, std::size_t)> known{nullptr};
    const CUresult result = drivers(known, "cuMemAlloc_v2")(pointer, bytes);
    if (result == CUDA_SUCCESS) ++allocated;
    return result;
}
EXPORT CUresult cuMemFree_v2(CUdeviceptr pointer) {
    static constinit std::atomic<CUresult (*)(CUdeviceptr)> known{nullptr};
    const CUresult result = drivers(known, "cuMemFree_v2")(pointer);
    if (result == CUDA_SUCCESS) ++freed;
    return result;
}
EXPORT void *dlsym(void *handle, const char *name) noexcept {
    if (handle != RTLD_NEXT && std::strcmp(name, "cuMemAlloc_v2") == 0) return reinterpret_cast<void *>(&cuMemAlloc_v2);
    if (handle != RTLD_NEXT && std::strcmp(name, "cuMemFree_v2") == 0) return reinterpret_cast<void *>(&cuMemFree_v2);
    return next_dlsym()(handle, name);
}

__attribute__((destructor)) static void at_end() {
    mark("allocated", allocated);
    mark("freed", freed);
}
