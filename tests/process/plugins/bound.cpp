// A plugin that is linked with the driver. Opened with RTLD_DEEPBIND, it bypasses curb.
#include "abi/cuda_abi.h"

extern "C" __attribute__((visibility("default"))) int plugin_allocates() {
    CUcontext context = nullptr;
    CUdeviceptr block = 0;
    if (cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS ||
        cuCtxSetCurrent(context) != CUDA_SUCCESS)
        return 1;
    return cuMemAlloc_v2(&block, 64 << 20);
}
