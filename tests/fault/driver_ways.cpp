// Memory that the driver takes by rules of its own, beside the families: contexts, heaps, code and captures.
#include "contract/images.hpp"
#include "ways.hpp"

using namespace fault;

WAY(contexts, R"({"version": 1, "gpu": {"*": {"cap": "4GiB"}}})") {
    CUcontext primary = p.start();
    CUcontext own = nullptr, popped = nullptr;
    CUdeviceptr inside = 0, outside = 0;
    DO(cuMemAlloc_v2, &outside, 16 * MiB);
    DO(cuCtxCreate_v2, &own, 0, 0);
    DO(cuMemAlloc_v2, &inside, 32 * MiB);
    p.read_books();
    DO(cuCtxPopCurrent_v2, &popped);
    DO(cuCtxDestroy_v2, own);
    DO(cuCtxSetCurrent, primary);
    p.read_books();
    DO(cuDevicePrimaryCtxReset_v2, 0);
    p.read_books();
    p.end_fault();
    DO(cuDevicePrimaryCtxRetain, &primary, 0);
    DO(cuCtxSetCurrent, primary);
    DO(cuMemAlloc_v2, &inside, 16 * MiB);
    DO(cuMemFree_v2, inside);
    p.read_books();
    p.cap_holds(4 * GiB);
}

WAY(a_primary_context_with_several_users, R"({"version": 1, "gpu": {"*": {"cap": "4GiB"}}})") {
    CUcontext primary = p.start();
    CUdeviceptr block = 0;
    DO(cuDevicePrimaryCtxRetain, &primary, 0);
    DO(cuMemAlloc_v2, &block, 16 * MiB);
    DO(cuDevicePrimaryCtxRelease_v2, 0);
    p.read_books();
    DO(cuDevicePrimaryCtxRelease_v2, 0);
    p.read_books();
    DO(cuDevicePrimaryCtxRetain, &primary, 0);
    DO(cuCtxSetCurrent, primary);
    p.end_fault();
    DO(cuMemAlloc_v2, &block, 16 * MiB);
    DO(cuMemFree_v2, block);
    p.read_books();
    p.cap_holds(4 * GiB);
}

WAY(heaps, kCapped) {
    p.start();
    DO(cuCtxSetLimit, CU_LIMIT_MALLOC_HEAP_SIZE, 100 * MiB);
    p.read_books();
    p.end_fault();
    DO(cuCtxSetLimit, CU_LIMIT_MALLOC_HEAP_SIZE, 8 * MiB);
    p.read_books();
    p.cap_holds(kCap);
}

WAY(code, kCapped) {
    p.start();
    CUmodule too_large = nullptr;
    CUlibrary library = nullptr;
    CUkernel kernel = nullptr;
    CUfunction function = nullptr;
    REFUSED(cuModuleLoadData, &too_large, contract::kLargeImage);
    DO(cuLibraryLoadData, &library, contract::kSmallImage, nullptr, nullptr, 0, nullptr, nullptr, 0);
    DO(cuLibraryGetKernel, &kernel, library, "small");
    DO(cuKernelGetFunction, &function, kernel);
    DO(cuLaunchKernel, function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
    p.read_books();
    p.end_fault();
    DO(cuLibraryUnload, library);
    p.read_books();
    p.cap_holds(kCap);
}

WAY(captures, R"({"version": 1, "gpu": {"*": {"cap": "2GiB", "cache": {"max": "500MiB", "idle": "1h"}}}})") {
    p.start();
    CUstream stream = nullptr, left = nullptr;
    CUdeviceptr block = 0, plain = 0;
    CUgraph graph = nullptr, none = nullptr;
    CUgraphExec executable = nullptr;
    DO(cuMemAlloc_v2, &plain, 16 * MiB);
    DO(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    DO(cuStreamCreate, &left, CU_STREAM_NON_BLOCKING);
    DO(cuStreamBeginCapture_v2, stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
    DO(cuMemAllocAsync, &block, 64 * MiB, stream);
    DO(cuMemFreeAsync, block, stream);
    DO(cuStreamEndCapture, stream, &graph);
    DO(cuGraphInstantiateWithFlags, &executable, graph, 0);
    DO(cuGraphLaunch, executable, stream);
    DO(cuStreamSynchronize, stream);
    // Another capture ends with its stream. The end of a capture that never began must change nothing.
    DO(cuStreamBeginCapture_v2, left, CU_STREAM_CAPTURE_MODE_RELAXED);
    DO(cuStreamDestroy_v2, left);
    p.call("cuStreamEndCapture", CUDA_ERROR_ILLEGAL_STATE, [&] { return cuStreamEndCapture(stream, &none); });
    // No capture is in progress, so curb keeps a freed block, and a release waits for the pools.
    DO(cuMemFree_v2, plain);
    p.read_books();
    p.end_fault();
    DO(cuGraphExecDestroy, executable);
    DO(cuGraphDestroy, graph);
    DO(cuDeviceGraphMemTrim, 0);
    DO(cuStreamDestroy_v2, stream);
    p.release(R"(["cache", "pools"])");
    p.read_books();
    p.cap_holds(kCap);
}
