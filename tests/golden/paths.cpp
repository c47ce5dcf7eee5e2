// Calls each hot path many times, for callgrind to count. golden_test.py runs it.
//
//   golden_paths all       every path
//   golden_paths pair      only cuMemAlloc and cuMemFree of one size, whose path differs with a cache or a trace
//
// callgrind counts what this thread runs between two client requests, and dumps it under the path's name.

#include <dlfcn.h>
#include <valgrind/callgrind.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "../families/properties.hpp"
#include "abi/cuda_abi.h"

namespace {

// Each path runs in slices, of which the cheapest counts. Work that depends on time, such as the measurement that
// cuMemGetInfo makes when the last one is old, is in more of the slices the slower the machine is.
constexpr int kSlices = 30, kCalls = 500;
constexpr std::size_t kKiB = 1 << 10, kMiB = 1 << 20, kGiB = 1 << 30;

template <class F>
F *find(void *library, const char *name) {
    return reinterpret_cast<F *>(dlsym(library, name));
}

template <class Call>
void walk(const char *name, Call call) {
    for (int i = 0; i < kCalls; ++i) call();  // so that everything made at first use is there
    for (int slice = 0; slice < kSlices; ++slice) {
        CALLGRIND_ZERO_STATS;
        CALLGRIND_TOGGLE_COLLECT;
        for (int i = 0; i < kCalls; ++i) call();
        CALLGRIND_TOGGLE_COLLECT;
        CALLGRIND_DUMP_STATS_AT(name);
    }
}

}  // namespace

int main(int argc, char **argv) {
    void *driver = argc == 2 ? dlopen("libcuda.so.1", RTLD_NOW) : nullptr;
    if (!driver) return 2;
    const auto alloc = find<decltype(cuMemAlloc_v2)>(driver, "cuMemAlloc_v2");
    const auto free_memory = find<decltype(cuMemFree_v2)>(driver, "cuMemFree_v2");
    CUcontext context = nullptr;
    find<decltype(cuInit)>(driver, "cuInit")(0);
    find<decltype(cuDevicePrimaryCtxRetain)>(driver, "cuDevicePrimaryCtxRetain")(&context, 0);
    CUdeviceptr pointer = 0;
    walk("cuMemAlloc + cuMemFree, 2 MiB", [&] {
        alloc(&pointer, 2 * kMiB);
        free_memory(pointer);
    });
    if (std::strcmp(argv[1], "all") != 0) return 0;

    const auto set = find<decltype(cuMemPoolSetAttribute)>(driver, "cuMemPoolSetAttribute");
    const auto alloc_async = find<decltype(cuMemAllocAsync)>(driver, "cuMemAllocAsync");
    const auto free_async = find<decltype(cuMemFreeAsync)>(driver, "cuMemFreeAsync");
    const auto create = find<decltype(cuMemCreate)>(driver, "cuMemCreate");
    const auto release = find<decltype(cuMemRelease)>(driver, "cuMemRelease");
    const auto launch = find<decltype(cuLaunchKernel)>(driver, "cuLaunchKernel");
    const auto launch_graph = find<decltype(cuGraphLaunch)>(driver, "cuGraphLaunch");
    const auto info = find<decltype(cuMemGetInfo_v2)>(driver, "cuMemGetInfo_v2");
    std::uint64_t value = 0;
    walk("a call that is passed on", [&] { set(nullptr, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, &value); });
    walk("cuMemAlloc + cuMemFree, 4 KiB", [&] {
        alloc(&pointer, 4 * kKiB);
        free_memory(pointer);
    });
    walk("cuMemAllocAsync + cuMemFreeAsync", [&] {
        alloc_async(&pointer, 4 * kKiB, nullptr);
        free_async(pointer, nullptr);
    });
    const CUmemAllocationProp properties = families::on_device(0);
    CUmemGenericAllocationHandle handle = 0;
    walk("cuMemCreate + cuMemRelease", [&] {
        create(&handle, 2 * kMiB, &properties, 0);
        release(handle);
    });
    std::size_t free_bytes = 0, total = 0;
    walk("cuMemGetInfo", [&] { info(&free_bytes, &total); });
    const auto kernel = reinterpret_cast<CUfunction>(0x10);
    walk("cuLaunchKernel", [&] { launch(kernel, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr); });
    walk("cuGraphLaunch", [&] { launch_graph(nullptr, nullptr); });
    alloc(&pointer, 8 * kGiB);
    walk("cuMemAlloc, refused", [&] { alloc(&pointer, 60 * kGiB); });
    return 0;
}
