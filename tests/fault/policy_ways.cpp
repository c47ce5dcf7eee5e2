// Ways with a policy that changes requests: kept blocks, pools, growth, releases, live caps and a trace.
#include "ways.hpp"

using namespace fault;

namespace {

CUdeviceptr take(Program &p, Bytes bytes) {
    CUdeviceptr pointer = 0;
    DO(cuMemAlloc_v2, &pointer, bytes);
    return pointer;
}

}  // namespace

WAY(the_start, kCapped) {
    p.start();
    p.read_books();
    p.cap_holds(kCap);
}

WAY(memory_without_a_policy, kNoPolicy) {
    p.start();
    const CUdeviceptr block = take(p, 100 * MiB), small = take(p, 100);
    std::size_t free = 0, total = 0;
    DO(cuMemGetInfo_v2, &free, &total);
    DO(cuDeviceTotalMem_v2, &total, 0);
    p.read_books();
    p.end_fault();
    DO(cuMemFree_v2, block);
    DO(cuMemFree_v2, small);
    p.read_books();
}

WAY(kept_blocks, R"({"version": 1, "gpu": {"*": {"cap": "2GiB", "cache": {"max": "200MiB", "idle": "1h"}}}})") {
    p.start();
    CUdeviceptr block = take(p, 64 * MiB), other = take(p, 100 * MiB), small = take(p, 64 * KiB), large = 0;
    DO(cuMemFree_v2, block);
    block = take(p, 64 * MiB);
    DO(cuMemFree_v2, block);
    DO(cuMemFree_v2, other);
    DO(cuMemFree_v2, small);
    // It fits only without the kept blocks.
    DO(cuMemAlloc_v2, &large, 1300 * MiB);
    p.read_books();
    CUdeviceptr second = take(p, 40 * MiB);
    CUipcMemHandle handle;
    int device = -1;
    if (second != 0) {  // not refused for lack of memory
        DO(cuIpcGetMemHandle, &handle, second);
        DO(cuPointerGetAttribute, &device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, second);
    }
    p.end_fault();
    DO(cuMemFree_v2, second);
    DO(cuMemFree_v2, large);
    p.release(R"(["cache"])");
    p.read_books();
    p.cap_holds(kCap);
}

WAY(kept_blocks_of_a_context_that_ends,
    R"({"version": 1, "gpu": {"*": {"cap": "4GiB", "cache": {"max": "200MiB", "idle": "1h"}}}})") {
    const CUcontext primary = p.start();
    CUcontext own = nullptr, popped = nullptr;
    CUdeviceptr inside = 0, kept = 0;
    DO(cuCtxCreate_v2, &own, 0, 0);
    DO(cuMemAlloc_v2, &inside, 20 * MiB);
    DO(cuMemAlloc_v2, &kept, 30 * MiB);
    DO(cuMemFree_v2, kept);
    DO(cuCtxPopCurrent_v2, &popped);
    DO(cuCtxSetCurrent, primary);
    const CUdeviceptr block = take(p, 64 * MiB);
    p.read_books();
    p.end_fault();
    DO(cuCtxDestroy_v2, own);
    DO(cuMemFree_v2, block);
    p.release(R"(["cache"])");
    p.read_books();
    p.cap_holds(4 * GiB);
}

WAY(idle_memory_of_a_pool_at_the_cap, kCapped) {
    p.start();
    CUdeviceptr pooled = 0, plain = 0;
    const CUmemoryPool pool = keeping_pool(p);
    DO(cuMemAllocAsync, &pooled, 1024 * MiB, nullptr);
    DO(cuMemFreeAsync, pooled, nullptr);
    DO(cuCtxSynchronize);
    // The pool serves the next request from its idle memory. Then curb trims it for a plain request.
    DO(cuMemAlloc_v2, &plain, 300 * MiB);
    DO(cuMemAllocAsync, &pooled, 900 * MiB, nullptr);
    DO(cuMemFreeAsync, pooled, nullptr);
    DO(cuCtxSynchronize);
    DO(cuMemFree_v2, plain);
    DO(cuMemAlloc_v2, &plain, 1200 * MiB);
    p.read_books();
    p.end_fault();
    DO(cuMemFree_v2, plain);
    DO(cuMemPoolTrimTo, pool, 0);
    p.read_books();
    p.cap_holds(kCap);
}

WAY(growth, R"({"version": 1, "gpu": {"*": {"cap": "2GiB",
    "growth": {"start": "640MiB", "step": "256MiB", "every": "1ms", "wait": "20s", "keep_free": "1GiB"}}}})") {
    p.start();
    std::array<CUdeviceptr, 3> blocks{};
    CUdeviceptr none = 0;
    for (CUdeviceptr &one : blocks) DO(cuMemAlloc_v2, &one, 200 * MiB);
    REFUSED(cuMemAlloc_v2, &none, 3 * GiB);
    p.read_books();
    p.end_fault();
    for (const CUdeviceptr one : blocks) DO(cuMemFree_v2, one);
    p.release(R"(["pools"])");
    p.read_books();
    p.cap_holds(kCap);
}

WAY(releases, kCapped) {
    p.start();
    CUstream stream = nullptr;
    CUdeviceptr one = 0, two = 0;
    std::uint64_t kept = 0;
    DO(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    const CUmemoryPool pool = keeping_pool(p);
    DO(cuMemAllocAsync, &one, 400 * MiB, stream);
    DO(cuMemAllocAsync, &two, 100 * MiB, stream);
    DO(cuMemFreeAsync, one, stream);
    p.release(R"(["cache", "pools", "frameworks", "pressure"])");
    DO(cuMemPoolGetAttribute, pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &kept);
    if (kept != ~0ULL) p.problem("the pool's release threshold is reported as " + std::to_string(kept));
    p.end_fault();
    DO(cuMemFreeAsync, two, stream);
    p.release(R"(["pools"])");
    DO(cuStreamDestroy_v2, stream);
    p.read_books();
    p.cap_holds(kCap);
}

WAY(live_caps_and_a_trace, R"({"version": 1, "gpu": {"*": {"cap": "2GiB"}}, "trace": {"file": "%d/trace.json"}})") {
    p.start();
    CUdeviceptr block = 0, pooled = 0, none = 0;
    DO(cuMemAlloc_v2, &block, 300 * MiB);
    keeping_pool(p);
    DO(cuMemAllocAsync, &pooled, 400 * MiB, nullptr);
    DO(cuMemFreeAsync, pooled, nullptr);
    if (p.set_cap("1GiB")) REFUSED(cuMemAlloc_v2, &none, 500 * MiB);
    p.end_fault();
    const bool is_reset = p.set_cap("2GiB");
    DO(cuMemFree_v2, block);
    p.release(R"(["pools"])");
    p.read_books();
    if (is_reset) p.cap_holds(kCap);
}
