// Helpers of the scenarios about memory: they allocate it, and fill a device up to the cap.
#pragma once

#include "../../families/properties.hpp"
#include "scenario.hpp"
#include "sim.h"

namespace scenario {

inline constexpr std::uint64_t kCap = 1 * GiB;  // set by shim_test.cpp for these scenarios

inline CUdeviceptr take(std::uint64_t bytes) {
    CUdeviceptr pointer = 0;
    MUST(cuMemAlloc_v2(&pointer, bytes));
    return pointer;
}

// Physical memory, which is not mapped.
inline CUmemGenericAllocationHandle take_physical(std::uint64_t bytes, int device = 0) {
    const CUmemAllocationProp properties = families::on_device(device);
    CUmemGenericAllocationHandle handle = 0;
    MUST(cuMemCreate(&handle, bytes, &properties, 0));
    return handle;
}

// Calls `allocate` until it is refused. Returns how often it succeeded.
template <class Allocate>
int fill(Allocate allocate) {
    int served = 0;
    CUresult result = CUDA_SUCCESS;
    while ((result = allocate()) == CUDA_SUCCESS) {
        ++served;
        EXPECT(curb_sim_held(0) <= kCap);
        if (served > 100'000) break;
    }
    EXPECT_EQ(result, CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT(curb_sim_held(0) <= kCap);
    return served;
}

using families::on_device;
using families::pool_on;

inline CUmemPoolProps managed_pool_on(CUmemLocationType where) {
    return pool_on(where, 0, CU_MEM_HANDLE_TYPE_NONE, CU_MEM_ALLOCATION_TYPE_MANAGED);
}
inline CUmemoryPool make_pool(const CUmemPoolProps &properties = pool_on(CU_MEM_LOCATION_TYPE_DEVICE, 0)) {
    CUmemoryPool pool = nullptr;
    MUST(cuMemPoolCreate(&pool, &properties));
    return pool;
}

inline void keep_everything(CUmemoryPool pool) {
    std::uint64_t threshold = ~0ULL;
    MUST(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
}

inline CUmemoryPool default_pool() {
    CUmemoryPool pool = nullptr;
    MUST(cuDeviceGetDefaultMemPool(&pool, 0));
    return pool;
}

// Allocates from the default pool, and sets it to keep freed memory until a trim.
inline CUdeviceptr take_from_keeping_pool(std::uint64_t bytes) {
    CUdeviceptr block = 0;
    keep_everything(default_pool());
    MUST(cuMemAllocAsync(&block, bytes, nullptr));
    return block;
}

// An array of single floats.
inline CUDA_ARRAY3D_DESCRIPTOR floats(std::size_t width, std::size_t height, std::size_t depth, unsigned flags) {
    return {width, height, depth, CU_AD_FORMAT_FLOAT, 1, flags};
}

// A graph that allocates `bytes` and leaves them to the program.
struct AllocatingGraph {
    explicit AllocatingGraph(std::uint64_t bytes, unsigned long long flags = 0) {
        CUDA_MEM_ALLOC_NODE_PARAMS parameters = families::memory_node(bytes);
        CUgraphNode node = nullptr;
        MUST(cuGraphCreate(&graph, 0));
        MUST(cuGraphAddMemAllocNode(&node, graph, nullptr, 0, &parameters));
        block = parameters.dptr;
        MUST(cuGraphInstantiateWithFlags(&executable, graph, flags));
    }
    CUgraph graph = nullptr;
    CUgraphExec executable = nullptr;
    CUdeviceptr block = 0;
};

inline CUmodule load_module(const char *image) {
    CUmodule module = nullptr;
    MUST(cuModuleLoadData(&module, image));
    return module;
}

inline CUlibrary load_library(const char *image) {
    CUlibrary library = nullptr;
    MUST(cuLibraryLoadData(&library, image, nullptr, nullptr, 0, nullptr, nullptr, 0));
    return library;
}

inline CUfunction kernel_of(CUmodule module, const char *name) {
    CUfunction function = nullptr;
    MUST(cuModuleGetFunction(&function, module, name));
    return function;
}

inline CUresult launch(CUfunction function) {
    return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
}

}  // namespace scenario
