// Memory that belongs to a context: plain, pitched, managed, arrays, and what curb keeps of it.
#include "ways.hpp"

using namespace fault;

namespace {

CUDA_ARRAY3D_DESCRIPTOR floats(std::size_t width, std::size_t height, std::size_t depth) {
    return {width, height, depth, CU_AD_FORMAT_FLOAT, 1, 0};
}

CUdeviceptr take(Program &p, Bytes bytes) {
    CUdeviceptr pointer = 0;
    DO(cuMemAlloc_v2, &pointer, bytes);
    return pointer;
}

}  // namespace

WAY(plain_memory, kCapped) {
    p.start();
    CUdeviceptr large = take(p, 100 * MiB), small = take(p, 4 * KiB), other = take(p, 8 * KiB), pitched = 0, again = 0;
    std::size_t pitch = 0;
    DO(cuMemAllocPitch_v2, &pitched, &pitch, 1000, 1000, 4);
    p.read_books();
    DO(cuMemFree_v2, small);
    DO(cuMemFree_v2, large);
    DO(cuMemAlloc_v2, &again, 3 * MiB);
    p.read_books();
    p.mend();
    for (const CUdeviceptr one : {other, pitched, again}) DO(cuMemFree_v2, one);
    p.read_books();
    p.cap_holds(kCap);
}

WAY(memory_up_to_the_cap, kCapped) {
    p.start();
    std::array<CUdeviceptr, 4> blocks{};
    CUdeviceptr none = 0;
    for (CUdeviceptr &one : blocks) one = take(p, 300 * MiB);
    REFUSED(cuMemAlloc_v2, &none, 300 * MiB);
    REFUSED(cuMemAllocManaged, &none, 300 * MiB, CU_MEM_ATTACH_GLOBAL);
    p.read_books();
    p.mend();
    for (const CUdeviceptr one : blocks) DO(cuMemFree_v2, one);
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
    p.mend();
    DO(cuMemFree_v2, block);
    DO(cuMemFree_v2, small);
    p.read_books();
}

WAY(managed_memory, kCapped) {
    p.start();
    CUdeviceptr one = 0, two = 0;
    DO(cuMemAllocManaged, &one, 64 * MiB, CU_MEM_ATTACH_GLOBAL);
    DO(cuMemAllocManaged, &two, 1, CU_MEM_ATTACH_GLOBAL);
    p.read_books();
    p.mend();
    DO(cuMemFree_v2, one);
    DO(cuMemFree_v2, two);
    p.read_books();
    p.cap_holds(kCap);
}

WAY(arrays, kCapped) {
    p.start();
    const CUDA_ARRAY_DESCRIPTOR flat{4096, 4096, CU_AD_FORMAT_FLOAT, 1};
    const CUDA_ARRAY3D_DESCRIPTOR layered = floats(512, 512, 16);
    CUarray one = nullptr, two = nullptr;
    CUmipmappedArray levels = nullptr;
    DO(cuArrayCreate_v2, &one, &flat);
    DO(cuArray3DCreate_v2, &two, &layered);
    DO(cuMipmappedArrayCreate, &levels, &layered, 3);
    p.read_books();
    p.mend();
    DO(cuArrayDestroy, one);
    DO(cuArrayDestroy, two);
    DO(cuMipmappedArrayDestroy, levels);
    p.read_books();
    p.cap_holds(kCap);
}

WAY(kept_blocks, R"({"version": 1, "gpu": {"*": {"cap": "2GiB", "cache": {"max": "200MiB", "idle": "1h"}}}})") {
    p.start();
    CUdeviceptr block = take(p, 64 * MiB), other = take(p, 100 * MiB), small = take(p, 64 * KiB), large = 0;
    DO(cuMemFree_v2, block);
    block = take(p, 64 * MiB);
    DO(cuMemFree_v2, block);
    DO(cuMemFree_v2, other);
    DO(cuMemFree_v2, small);
    // There is room for it without what is kept.
    DO(cuMemAlloc_v2, &large, 1300 * MiB);
    p.read_books();
    CUdeviceptr second = take(p, 40 * MiB);
    CUipcMemHandle handle;
    int device = -1;
    if (second != 0) {  // not refused for want of memory
        DO(cuIpcGetMemHandle, &handle, second);
        DO(cuPointerGetAttribute, &device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, second);
    }
    p.mend();
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
    p.mend();
    DO(cuCtxDestroy_v2, own);
    DO(cuMemFree_v2, block);
    p.release(R"(["cache"])");
    p.read_books();
    p.cap_holds(4 * GiB);
}
