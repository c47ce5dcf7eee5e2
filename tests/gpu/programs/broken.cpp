// What the driver still answers after an error that stays: broken address|trap. A kernel of that kind fails, then each
// call of a list is made once: its name and its result. The primary context is then reset, and used again. What answers
// is the table kAnswersBroken of tests/sim/faults.cpp. On the simulated driver, curb_sim_break stands for the kernel.
//
//   g++ -std=c++20 -Ishim/abi tests/gpu/programs/broken.cpp -o broken -l:libcuda.so.1 -ldl && ./broken address
#include <dlfcn.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "cuda_abi.h"

namespace {

constexpr char kImage[] = R"(.version 7.0
.target sm_50
.address_size 64
.visible .entry address() {
  .reg .b64 %rd<2>;
  .reg .b32 %r<2>;
  mov.u64 %rd1, 8;
  mov.u32 %r1, 1;
  st.global.u32 [%rd1], %r1;
  ret;
}
.visible .entry trap() {
  trap;
  ret;
}
)";

void must(const char *what, CUresult result) {
    if (result != CUDA_SUCCESS) std::printf("%s: %d before the failure\n", what, result);
}

template <class Call>
void tell(const char *name, Call call) {
    std::printf("%-40s %d\n", name, call());
    std::fflush(stdout);
}

template <class Call>
void time(const char *name, Call call) {
    constexpr int kTimes = 20'000;
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kTimes; ++i) call();
    const std::chrono::duration<double, std::nano> each = (std::chrono::steady_clock::now() - begin) / kTimes;
    std::printf("%-40s %.0f ns\n", name, each.count());
}

}  // namespace

#define TELL(name, ...) tell(#name, [&] { return name(__VA_ARGS__); })
#define TIME(name, ...) time(#name, [&] { return name(__VA_ARGS__); })

int main(int, char **arguments) {
    const char *kind = arguments[1] ? arguments[1] : "address";
    CUcontext context = nullptr, other = nullptr, current = nullptr;
    CUmodule module = nullptr, module_again = nullptr;
    CUfunction kernel = nullptr;
    CUdeviceptr block = 0, more = 0;
    CUstream stream = nullptr, stream_again = nullptr;
    CUevent event = nullptr;
    CUmemoryPool pool = nullptr;
    CUmemAllocationProp properties{};
    CUmemGenericAllocationHandle handle = 0;
    CUstreamCaptureStatus status{};
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    const CUDA_ARRAY_DESCRIPTOR small{64, 64, CU_AD_FORMAT_FLOAT, 1};
    CUarray array = nullptr;
    CUdevice device = 0;
    CUuuid uuid{};
    std::size_t bytes = 0, total = 0;
    std::uint64_t value = 0;
    unsigned flags = 0, version = 0;
    int active = 0, number = 0, local = 0;
    char text[128];
    const char *name = nullptr;
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};

    must("cuInit", cuInit(0));
    must("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&context, 0));
    must("cuCtxSetCurrent", cuCtxSetCurrent(context));
    must("cuModuleLoadData", cuModuleLoadData(&module, kImage));
    must("cuModuleGetFunction", cuModuleGetFunction(&kernel, module, kind));
    must("cuMemAlloc", cuMemAlloc_v2(&block, 2 << 20));
    must("cuStreamCreate", cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    must("cuEventCreate", cuEventCreate(&event, 0));
    must("cuEventRecord", cuEventRecord(event, stream));
    must("cuDeviceGetDefaultMemPool", cuDeviceGetDefaultMemPool(&pool, 0));
    must("cuCtxSynchronize", cuCtxSynchronize());
    TIME(cuStreamQuery, CU_STREAM_LEGACY);
    TIME(cuEventQuery, event);
    TIME(cuCtxSynchronize, );
    TIME(cuCtxGetLimit, &bytes, CU_LIMIT_STACK_SIZE);
    TIME(cuStreamIsCapturing, stream, &status);
    TIME(cuMemGetAddressRange_v2, &more, &bytes, block);
    TIME(cuCtxGetApiVersion, context, &version);
    TIME(cuDevicePrimaryCtxGetState, 0, &flags, &active);

    using Break = void (*)(int);
    if (const auto simulated = reinterpret_cast<Break>(dlsym(RTLD_DEFAULT, "curb_sim_break"))) {
        simulated(CUDA_ERROR_ILLEGAL_ADDRESS);
    } else {
        must("cuLaunchKernel", cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr));
        std::printf("%-40s %d\n", "the failure, from cuStreamSynchronize", cuStreamSynchronize(stream));
    }

    TELL(cuInit, 0);
    TELL(cuDriverGetVersion, &number);
    TELL(cuGetErrorName, CUDA_ERROR_ILLEGAL_ADDRESS, &name);
    TELL(cuGetErrorString, CUDA_ERROR_ILLEGAL_ADDRESS, &name);
    TELL(cuDeviceGet, &device, 0);
    TELL(cuDeviceGetCount, &number);
    TELL(cuDeviceGetName, text, sizeof text, 0);
    TELL(cuDeviceGetUuid_v2, &uuid, 0);
    TELL(cuDeviceGetAttribute, &number, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0);
    TELL(cuDeviceGetPCIBusId, text, sizeof text, 0);
    TELL(cuDeviceTotalMem_v2, &total, 0);
    TELL(cuDeviceGetDefaultMemPool, &pool, 0);
    TELL(cuDeviceGetMemPool, &pool, 0);
    TELL(cuDeviceGetGraphMemAttribute, 0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &value);
    TELL(cuDevicePrimaryCtxGetState, 0, &flags, &active);
    TELL(cuDevicePrimaryCtxRetain, &current, 0);
    TELL(cuDevicePrimaryCtxRelease_v2, 0);
    TELL(cuCtxGetCurrent, &current);
    TELL(cuCtxSetCurrent, context);
    TELL(cuCtxPushCurrent_v2, context);
    TELL(cuCtxPopCurrent_v2, &current);
    TELL(cuCtxSetCurrent, context);
    TELL(cuCtxGetDevice, &device);
    TELL(cuCtxGetFlags, &flags);
    TELL(cuCtxGetApiVersion, context, &version);
    TELL(cuCtxGetLimit, &bytes, CU_LIMIT_STACK_SIZE);
    TELL(cuCtxSetLimit, CU_LIMIT_STACK_SIZE, 2048);
    TELL(cuCtxSynchronize, );
    TELL(cuThreadExchangeStreamCaptureMode, &mode);
    TELL(cuThreadExchangeStreamCaptureMode, &mode);
    TELL(cuStreamCreate, &stream_again, 0);
    TELL(cuStreamQuery, CU_STREAM_LEGACY);
    TELL(cuStreamQuery, stream);
    TELL(cuStreamIsCapturing, stream, &status);
    TELL(cuStreamGetCtx, stream, &current);
    TELL(cuStreamGetDevice, stream, &device);
    TELL(cuStreamSynchronize, stream);
    TELL(cuEventQuery, event);
    TELL(cuEventRecord, event, stream);
    TELL(cuMemGetInfo_v2, &bytes, &total);
    TELL(cuMemGetAddressRange_v2, &more, &bytes, block);
    TELL(cuPointerGetAttribute, &number, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, block);
    TELL(cuMemAlloc_v2, &more, 2 << 20);
    TELL(cuMemAllocAsync, &more, 2 << 20, stream);
    TELL(cuMemAllocManaged, &more, 2 << 20, CU_MEM_ATTACH_GLOBAL);
    TELL(cuMemcpyDtoH_v2, text, block, 1);
    TELL(cuMemCreate, &handle, 2 << 20, &properties, 0);
    TELL(cuMemRelease, handle);
    TELL(cuArrayCreate_v2, &array, &small);
    TELL(cuMemPoolGetAttribute, pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value);
    TELL(cuMemPoolTrimTo, pool, 0);
    TELL(cuModuleLoadData, &module_again, kImage);
    TELL(cuFuncGetAttribute, &local, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, kernel);
    TELL(cuLaunchKernel, kernel, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr);
    TELL(cuModuleUnload, module);
    TELL(cuMemFree_v2, block);
    TELL(cuEventDestroy_v2, event);
    TELL(cuStreamDestroy_v2, stream);
    TELL(cuCtxCreate_v2, &other, 0, 0);
    if (other) {
        TELL(cuMemAlloc_v2, &more, 2 << 20);
        TELL(cuCtxDestroy_v2, other);
    }

    std::printf("reset, and after it:\n");
    TELL(cuDevicePrimaryCtxReset_v2, 0);
    TELL(cuDevicePrimaryCtxGetState, 0, &flags, &active);
    std::printf("%-40s %d\n", "active", active);
    TELL(cuDevicePrimaryCtxRetain, &current, 0);
    std::printf("%-40s %d\n", "the same handle", current == context);
    TELL(cuCtxSetCurrent, current);
    TELL(cuMemGetInfo_v2, &bytes, &total);
    std::printf("%-40s %.0f\n", "MiB in use", static_cast<double>(total - bytes) / (1 << 20));
    TELL(cuMemAlloc_v2, &more, 2 << 20);
}
