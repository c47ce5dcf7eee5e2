/*
 * The part of the CUDA Driver API's binary interface that curb uses, declared here so that no CUDA toolkit is needed
 * to build. Names, values and layouts are those of CUDA 13.0's public interface; tests/link/cuda_abi_matches.cpp
 * compares every one of them with <cuda.h> wherever a toolkit is installed.
 *
 * This header includes nothing of curb: the simulated driver builds on it alone.
 */
#ifndef CURB_CUDA_ABI_H
#define CURB_CUDA_ABI_H

#include <stddef.h>
#include <stdint.h>

#define CU_IPC_HANDLE_SIZE 64
#define CU_STREAM_LEGACY ((CUstream)0x1)
#define CU_STREAM_PER_THREAD ((CUstream)0x2)

#include "abi/cuda_types.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default) /* a definition of one of these is an export */
#define CURB_CU(name, types) CUresult name types;
#define CURB_CU_STREAM(name, types) \
    CUresult name types;            \
    CUresult name##_ptsz types;
#define CURB_CU_BLOCKING(name, types) \
    CUresult name types;              \
    CUresult name##_ptds types;
#include "abi/cuda_functions.def"
#undef CURB_CU
#undef CURB_CU_STREAM
#undef CURB_CU_BLOCKING
#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif /* CURB_CUDA_ABI_H */
