// A libcuda.so.1 whose functions do nothing. A call through curb then takes only curb's own time.

#include <atomic>
#include <cstring>

#pragma GCC visibility push(default)
#include "abi/cuda_abi.h"

// The functions that the bench and curb call.
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
std::atomic<bool> retained{false};
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice) {
    retained.store(true);
    return cuCtxGetCurrent(context);
}
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) { return CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned *flags, int *active) {
    *flags = 0;
    *active = retained.load();
    return CUDA_SUCCESS;
}
CUresult cuCtxSynchronize() { return CUDA_SUCCESS; }
CUresult cuStreamQuery(CUstream) { return CUDA_SUCCESS; }
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
CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device) { return cuDeviceGetMemPool(pool, device); }
CUresult cuMemPoolGetAttribute(CUmemoryPool, CUmemPool_attribute, void *value) {
    const uint64_t reserved = uint64_t{32} << 20;
    std::memcpy(value, &reserved, sizeof reserved);
    return CUDA_SUCCESS;
}
CUresult cuMemPoolSetAttribute(CUmemoryPool, CUmemPool_attribute, void *) { return CUDA_SUCCESS; }
CUresult cuMemPoolTrimTo(CUmemoryPool, size_t) { return CUDA_SUCCESS; }
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *) { return CUDA_SUCCESS; }
CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    *free_bytes = *total = size_t{80} << 30;
    return CUDA_SUCCESS;
}

namespace {

// Returns an address that was never used. Each thread has its own range, so threads do not contend here. As by the
// driver, small blocks lie side by side in granules of 2 MiB.
CUdeviceptr fresh_address(size_t bytes) {
    static std::atomic<uint64_t> threads{0};
    thread_local CUdeviceptr next = (threads.fetch_add(1) + 1) << 44;
    const size_t unit = bytes < (2 << 20) ? 512 : 2 << 20;
    const CUdeviceptr address = (next + unit - 1) & ~(unit - 1);
    next = address + ((bytes + unit - 1) & ~(unit - 1));
    return address;
}

}  // namespace

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
    *pointer = fresh_address(bytes);
    return CUDA_SUCCESS;
}
CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream) { return cuMemAlloc_v2(pointer, bytes); }
CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                        void **, void **) {
    return CUDA_SUCCESS;
}
CUresult cuGraphLaunch(CUgraphExec, CUstream) { return CUDA_SUCCESS; }
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr, const void *, size_t, CUstream) { return CUDA_SUCCESS; }
CUresult cuMemFree_v2(CUdeviceptr) { return CUDA_SUCCESS; }
CUresult cuMemFreeAsync(CUdeviceptr, CUstream) { return CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext) { return CUDA_SUCCESS; }
CUresult cuStreamCreate(CUstream *stream, unsigned) {
    *stream = reinterpret_cast<CUstream>(0x3000);
    return CUDA_SUCCESS;
}
CUresult cuStreamSynchronize(CUstream) { return CUDA_SUCCESS; }
CUresult cuModuleLoadData(CUmodule *module, const void *) {
    *module = reinterpret_cast<CUmodule>(0x4000);
    return CUDA_SUCCESS;
}
CUresult cuModuleGetFunction(CUfunction *kernel, CUmodule, const char *) {
    *kernel = reinterpret_cast<CUfunction>(0x5000);
    return CUDA_SUCCESS;
}
CUresult cuGraphCreate(CUgraph *graph, unsigned) {
    *graph = reinterpret_cast<CUgraph>(0x6000);
    return CUDA_SUCCESS;
}
CUresult cuGraphGetNodes(CUgraph, CUgraphNode *, size_t *count) {
    *count = 0;
    return CUDA_SUCCESS;
}
CUresult cuGraphInstantiateWithFlags(CUgraphExec *executable, CUgraph, unsigned long long) {
    *executable = reinterpret_cast<CUgraphExec>(0x7000);
    return CUDA_SUCCESS;
}
CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t bytes, size_t, CUdeviceptr, unsigned long long) {
    return cuMemAlloc_v2(pointer, bytes);
}
CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *,
                     unsigned long long) {
    *handle = fresh_address(bytes);
    return CUDA_SUCCESS;
}
CUresult cuMemMap(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long) {
    return CUDA_SUCCESS;
}
CUresult cuMemSetAccess(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t) { return CUDA_SUCCESS; }
CUresult cuMemUnmap(CUdeviceptr, size_t) { return CUDA_SUCCESS; }
CUresult cuMemRelease(CUmemGenericAllocationHandle) { return CUDA_SUCCESS; }
CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *, CUmemAllocationGranularity_flags) {
    *bytes = 2 << 20;
    return CUDA_SUCCESS;
}
