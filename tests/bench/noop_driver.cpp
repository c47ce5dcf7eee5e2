// A libcuda.so.1 that does nothing, at once: in front of it, what a call costs is what curb costs.

#include <dlfcn.h>

#include <atomic>
#include <cstring>

#pragma GCC visibility push(default)
#include "cuda_abi.h"

// What the benchmark and curb need an answer from; every other function says CUDA_SUCCESS and nothing else.
CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
CUresult cuDeviceGetCount(int *count) {
    *count = 1;
    return CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice) {
    *bytes = size_t{80} << 30;
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice) {
    std::memset(uuid, 0, sizeof *uuid);
    return CUDA_SUCCESS;
}
CUresult cuCtxGetDevice(CUdevice *device) {
    *device = 0;
    return CUDA_SUCCESS;
}
constexpr uintptr_t kContext = 0x2000;
CUresult cuCtxGetCurrent(CUcontext *context) {
    *context = reinterpret_cast<CUcontext>(kContext);
    return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice) { return cuCtxGetCurrent(context); }
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) { return CUDA_SUCCESS; }
// Active from its first user on: the second time that curb asks.
CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned *flags, int *active) {
    static std::atomic<int> asked{0};
    *flags = 0;
    *active = asked.fetch_add(1) > 0;
    return CUDA_SUCCESS;
}
CUresult cuCtxSynchronize() { return CUDA_SUCCESS; }
CUresult cuStreamGetDevice(CUstream, CUdevice *device) {
    *device = 0;
    return CUDA_SUCCESS;
}
CUresult cuStreamIsCapturing(CUstream, CUstreamCaptureStatus *status) {
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice) {
    *pool = reinterpret_cast<CUmemoryPool>(0x1000);
    return CUDA_SUCCESS;
}
CUresult cuMemPoolGetAttribute(CUmemoryPool, CUmemPool_attribute, void *value) {
    const uint64_t reserved = uint64_t{32} << 20;
    std::memcpy(value, &reserved, sizeof reserved);
    return CUDA_SUCCESS;
}
CUresult cuMemPoolSetAttribute(CUmemoryPool, CUmemPool_attribute, void *) { return CUDA_SUCCESS; }
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *) { return CUDA_SUCCESS; }
CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    *free_bytes = *total = size_t{80} << 30;
    return CUDA_SUCCESS;
}
CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
    static std::atomic<CUdeviceptr> next{uint64_t{1} << 40};
    *pointer = next.fetch_add((bytes + 0x1fffff) & ~size_t{0x1fffff});
    return CUDA_SUCCESS;
}
CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream) { return cuMemAlloc_v2(pointer, bytes); }
CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                        void **, void **) {
    return CUDA_SUCCESS;
}
CUresult cuGraphLaunch(CUgraphExec, CUstream) { return CUDA_SUCCESS; }
CUresult cuMemFree_v2(CUdeviceptr) { return CUDA_SUCCESS; }
CUresult cuMemFreeAsync(CUdeviceptr, CUstream) { return CUDA_SUCCESS; }
