// Which handles the driver hands out again: of each kind two are made, the second is destroyed, and another is made.
// The simulated driver hands out the one that was freed last (tests/sim/handles.hpp); this prints what a real one does.
//
//   g++ -std=c++20 -Ishim/abi tests/gpu/programs/handles.cpp -o handles -l:libcuda.so.1 && ./handles
#include <cstdio>

#include "cuda_abi.h"

namespace {

constexpr char kImage[] = R"(.version 7.0
.target sm_50
.address_size 64
.visible .entry kernel() {
  ret;
}
)";

void must(const char *what, CUresult result) {
    if (result != CUDA_SUCCESS) std::printf("%s: %d\n", what, result);
}

template <class Handle, class Make, class End>
void tell(const char *kind, Make make, End end) {
    Handle first{}, second{}, third{};
    must(kind, make(&first));
    must(kind, make(&second));
    must(kind, end(second));
    must(kind, make(&third));
    const char *answer = third == second ? "comes again" : "is another";
    std::printf("%-24s %s (%#llx, %#llx)\n", kind, answer, (unsigned long long)second, (unsigned long long)third);
    must(kind, end(third));
    must(kind, end(first));
}

}  // namespace

int main() {
    CUcontext primary = nullptr, again = nullptr;
    must("cuInit", cuInit(0));
    must("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&primary, 0));
    must("cuCtxSetCurrent", cuCtxSetCurrent(primary));

    CUmemPoolProps in_device{}, on_host{};
    in_device.allocType = on_host.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    in_device.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    on_host.location = {CU_MEM_LOCATION_TYPE_HOST, 0};
    CUmemAllocationProp physical{};
    physical.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    physical.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    const CUDA_ARRAY_DESCRIPTOR flat{64, 64, CU_AD_FORMAT_FLOAT, 1};
    const CUDA_ARRAY3D_DESCRIPTOR levels{64, 64, 0, CU_AD_FORMAT_FLOAT, 1, 0};
    CUgraph graph = nullptr;
    must("cuGraphCreate", cuGraphCreate(&graph, 0));

    tell<CUcontext>(
        "context", [](auto *out) { return cuCtxCreate_v2(out, 0, 0); }, cuCtxDestroy_v2);
    must("cuCtxSetCurrent", cuCtxSetCurrent(primary));
    tell<CUstream>(
        "stream", [](auto *out) { return cuStreamCreate(out, 0); }, cuStreamDestroy_v2);
    tell<CUevent>(
        "event", [](auto *out) { return cuEventCreate(out, 0); }, cuEventDestroy_v2);
    tell<CUmemoryPool>(
        "pool", [&](auto *out) { return cuMemPoolCreate(out, &in_device); }, cuMemPoolDestroy);
    tell<CUmemoryPool>(
        "pool of the host", [&](auto *out) { return cuMemPoolCreate(out, &on_host); }, cuMemPoolDestroy);
    tell<CUarray>(
        "array", [&](auto *out) { return cuArrayCreate_v2(out, &flat); }, cuArrayDestroy);
    tell<CUmipmappedArray>(
        "mipmapped array", [&](auto *out) { return cuMipmappedArrayCreate(out, &levels, 2); }, cuMipmappedArrayDestroy);
    tell<CUmemGenericAllocationHandle>(
        "physical memory", [&](auto *out) { return cuMemCreate(out, 2 << 20, &physical, 0); }, cuMemRelease);
    tell<CUgraph>(
        "graph", [](auto *out) { return cuGraphCreate(out, 0); }, cuGraphDestroy);
    tell<CUgraphExec>(
        "executable graph", [&](auto *out) { return cuGraphInstantiateWithFlags(out, graph, 0); }, cuGraphExecDestroy);
    tell<CUmodule>(
        "module", [](auto *out) { return cuModuleLoadData(out, kImage); }, cuModuleUnload);

    CUmodule module = nullptr;
    CUfunction before = nullptr, after = nullptr;
    must("cuModuleLoadData", cuModuleLoadData(&module, kImage));
    must("cuModuleGetFunction", cuModuleGetFunction(&before, module, "kernel"));
    must("cuModuleUnload", cuModuleUnload(module));
    must("cuModuleLoadData", cuModuleLoadData(&module, kImage));
    must("cuModuleGetFunction", cuModuleGetFunction(&after, module, "kernel"));
    std::printf("%-24s %s\n", "function", after == before ? "comes again" : "is another");

    CUlibrary library = nullptr;
    CUkernel kernel = nullptr, later = nullptr;
    must("cuLibraryLoadData", cuLibraryLoadData(&library, kImage, nullptr, nullptr, 0, nullptr, nullptr, 0));
    must("cuLibraryGetKernel", cuLibraryGetKernel(&kernel, library, "kernel"));
    must("cuDevicePrimaryCtxReset", cuDevicePrimaryCtxReset_v2(0));
    must("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&again, 0));
    must("cuCtxSetCurrent", cuCtxSetCurrent(again));
    std::printf("%-24s %s\n", "primary context", again == primary ? "comes again" : "is another");
    must("cuLibraryGetKernel after a reset", cuLibraryGetKernel(&later, library, "kernel"));
    std::printf("%-24s %s\n", "kernel after a reset", later == kernel ? "comes again" : "is another");
    must("a launch of it",
         cuLaunchKernel(reinterpret_cast<CUfunction>(kernel), 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
}
