// Memory that the driver takes by rules of its own: contexts, stacks, code, and memory in virtual address ranges.

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
    p.mend();
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
    p.mend();
    DO(cuMemAlloc_v2, &block, 16 * MiB);
    DO(cuMemFree_v2, block);
    p.read_books();
    p.cap_holds(4 * GiB);
}

WAY(a_green_context, kCapped) {
    const CUcontext primary = p.start();
    CUdevResource all, some;
    CUdevResourceDesc resources = nullptr;
    CUgreenCtx green = nullptr;
    CUcontext context = nullptr, popped = nullptr;
    CUdeviceptr block = 0;
    unsigned groups = 1;
    DO(cuDeviceGetDevResource, 0, &all, CU_DEV_RESOURCE_TYPE_SM);
    DO(cuDevSmResourceSplitByCount, &some, &groups, &all, nullptr, 0, 16);
    DO(cuDevResourceGenerateDesc, &resources, &some, 1);
    DO(cuGreenCtxCreate, &green, resources, 0, CU_GREEN_CTX_DEFAULT_STREAM);
    DO(cuCtxFromGreenCtx, &context, green);
    DO(cuCtxPushCurrent_v2, context);
    DO(cuMemAlloc_v2, &block, 64 * MiB);
    DO(cuCtxPopCurrent_v2, &popped);
    p.read_books();
    p.mend();
    DO(cuGreenCtxDestroy, green);
    DO(cuCtxSetCurrent, primary);
    DO(cuMemFree_v2, block);
    p.read_books();
    p.cap_holds(kCap);
}

WAY(stacks_and_heaps, kCapped) {
    p.start();
    DO(cuCtxSetLimit, CU_LIMIT_STACK_SIZE, 2048);
    REFUSED(cuCtxSetLimit, CU_LIMIT_STACK_SIZE, 64 * KiB);
    DO(cuCtxSetLimit, CU_LIMIT_MALLOC_HEAP_SIZE, 100 * MiB);
    p.read_books();
    p.mend();
    DO(cuCtxSetLimit, CU_LIMIT_STACK_SIZE, 1024);
    DO(cuCtxSetLimit, CU_LIMIT_MALLOC_HEAP_SIZE, 8 * MiB);
    p.read_books();
    p.cap_holds(kCap);
}

namespace {

// Texts for both drivers, as contract/images.hpp has them. `frame` has 2 KiB of local memory for each thread, at
// indices that no compiler can know.
constexpr const char *kImage =
    "// curb-sim-module code=4MiB global=16MiB\n"
    "// kernel small\n"
    "// kernel frame local=2048\n" CONTRACT_PTX
    ".visible .global .align 16 .b8 large[16777216];\n"
    ".visible .entry small() {\n"
    "    ret;\n"
    "}\n"
    ".visible .entry frame() {\n"
    "    .local .align 16 .b8 bytes[2048];\n"
    "    .reg .b64 %p<6>;\n"
    "    .reg .b32 %v<4>;\n"
    "    mov.u32 %v1, %clock;\n"
    "    and.b32 %v1, %v1, 511;\n"
    "    mov.u32 %v2, %clock;\n"
    "    and.b32 %v2, %v2, 511;\n"
    "    mov.u64 %p1, bytes;\n"
    "    mul.wide.u32 %p2, %v1, 4;\n"
    "    add.u64 %p3, %p1, %p2;\n"
    "    st.local.u32 [%p3], %v1;\n"
    "    mul.wide.u32 %p4, %v2, 4;\n"
    "    add.u64 %p5, %p1, %p4;\n"
    "    ld.local.u32 %v3, [%p5];\n"
    "    st.global.u32 [large], %v3;\n"
    "    ret;\n"
    "}\n";

}  // namespace

WAY(code, kCapped) {
    p.start();
    CUmodule module = nullptr, too_large = nullptr;
    CUfunction small = nullptr, frame = nullptr;
    CUlibrary library = nullptr;
    CUkernel kernel = nullptr;
    CUfunction function = nullptr;
    DO(cuModuleLoadData, &module, kImage);
    DO(cuModuleGetFunction, &small, module, "small");
    DO(cuModuleGetFunction, &frame, module, "frame");
    DO(cuLaunchKernel, small, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
    DO(cuLaunchKernel, frame, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
    REFUSED(cuModuleLoadData, &too_large, contract::kLargeImage);
    DO(cuLibraryLoadData, &library, contract::kSmallImage, nullptr, nullptr, 0, nullptr, nullptr, 0);
    DO(cuLibraryGetKernel, &kernel, library, "small");
    DO(cuKernelGetFunction, &function, kernel);
    DO(cuLaunchKernel, function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
    p.read_books();
    p.mend();
    DO(cuLibraryUnload, library);
    DO(cuModuleUnload, module);
    DO(cuCtxSetLimit, CU_LIMIT_STACK_SIZE, 1024);
    p.read_books();
    p.cap_holds(kCap);
}

WAY(mapped_memory, kCapped) {
    p.start();
    const CUmemAllocationProp where = on_device();
    CUdeviceptr range = 0;
    CUmemGenericAllocationHandle first = 0, second = 0, retained = 0, none = 0;
    DO(cuMemAddressReserve, &range, 128 * MiB, 0, 0, 0);
    DO(cuMemCreate, &first, 64 * MiB, &where, 0);
    DO(cuMemCreate, &second, 64 * MiB, &where, 0);
    REFUSED(cuMemCreate, &none, 2 * GiB, &where, 0);
    DO(cuMemMap, range, 64 * MiB, 0, first, 0);
    DO(cuMemMap, range + 64 * MiB, 64 * MiB, 0, second, 0);
    DO(cuMemRelease, first);
    DO(cuMemRetainAllocationHandle, &retained, reinterpret_cast<void *>(range));
    p.read_books();
    DO(cuMemUnmap, range, 128 * MiB);
    p.read_books();
    p.mend();
    DO(cuMemRelease, second);
    DO(cuMemRelease, retained);
    DO(cuMemAddressFree, range, 128 * MiB);
    p.read_books();
    p.cap_holds(kCap);
}
