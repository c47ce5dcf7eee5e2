// A library that uses CUDA, for a program that opens and closes it. Its static object allocates memory when it is
// loaded and frees it when it is unloaded.
#include <cstdio>

#include "abi/cuda_abi.h"

namespace {

struct Block {
    CUdeviceptr pointer = 0;
    Block() {
        CUcontext context = nullptr;
        if (cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS) return;
        cuCtxSetCurrent(context);
        cuMemAlloc_v2(&pointer, 8 << 20);
    }
    ~Block() { std::printf("library %d\n", cuMemFree_v2(pointer)); }
} block;

}  // namespace
