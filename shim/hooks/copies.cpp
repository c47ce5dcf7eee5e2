// Copies that may read or write pageable memory of the program as long as they run. CountedSlot counts their calls
// (driver.hpp).

#include "blocks/applies.hpp"
#include "device/activity.hpp"
#include "driver/driver.hpp"

using namespace curb::shim;

#define COPY(name, parameters, arguments)              \
    CUresult name parameters {                         \
        activity::note();                              \
        return blocks::noted(driver().name arguments); \
    }
#define BLOCKING_COPY(name, parameters, arguments) \
    COPY(name, parameters, arguments)              \
    COPY(name##_ptds, parameters, arguments)
#define COPY_IN_STREAM(name, parameters, arguments) \
    COPY(name, parameters, arguments)               \
    COPY(name##_ptsz, parameters, arguments)

BLOCKING_COPY(cuMemcpy, (CUdeviceptr to, CUdeviceptr from, size_t bytes), (to, from, bytes))
BLOCKING_COPY(cuMemcpyPeer, (CUdeviceptr to, CUcontext there, CUdeviceptr from, CUcontext here, size_t bytes),
              (to, there, from, here, bytes))
BLOCKING_COPY(cuMemcpyHtoD_v2, (CUdeviceptr to, const void *from, size_t bytes), (to, from, bytes))
BLOCKING_COPY(cuMemcpyDtoH_v2, (void *to, CUdeviceptr from, size_t bytes), (to, from, bytes))
BLOCKING_COPY(cuMemcpyHtoA_v2, (CUarray to, size_t at, const void *from, size_t bytes), (to, at, from, bytes))
BLOCKING_COPY(cuMemcpyAtoH_v2, (void *to, CUarray from, size_t at, size_t bytes), (to, from, at, bytes))
BLOCKING_COPY(cuMemcpy2D_v2, (const CUDA_MEMCPY2D *copy), (copy))
BLOCKING_COPY(cuMemcpy2DUnaligned_v2, (const CUDA_MEMCPY2D *copy), (copy))
BLOCKING_COPY(cuMemcpy3D_v2, (const CUDA_MEMCPY3D *copy), (copy))
BLOCKING_COPY(cuMemcpy3DPeer, (const CUDA_MEMCPY3D_PEER *copy), (copy))

COPY_IN_STREAM(cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),
               (to, from, bytes, stream))
COPY_IN_STREAM(cuMemcpyPeerAsync,
               (CUdeviceptr to, CUcontext there, CUdeviceptr from, CUcontext here, size_t bytes, CUstream stream),
               (to, there, from, here, bytes, stream))
COPY_IN_STREAM(cuMemcpyHtoDAsync_v2, (CUdeviceptr to, const void *from, size_t bytes, CUstream stream),
               (to, from, bytes, stream))
COPY_IN_STREAM(cuMemcpyDtoHAsync_v2, (void *to, CUdeviceptr from, size_t bytes, CUstream stream),
               (to, from, bytes, stream))
COPY_IN_STREAM(cuMemcpyHtoAAsync_v2, (CUarray to, size_t at, const void *from, size_t bytes, CUstream stream),
               (to, at, from, bytes, stream))
COPY_IN_STREAM(cuMemcpyAtoHAsync_v2, (void *to, CUarray from, size_t at, size_t bytes, CUstream stream),
               (to, from, at, bytes, stream))
COPY_IN_STREAM(cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D *copy, CUstream stream), (copy, stream))
COPY_IN_STREAM(cuMemcpy3DAsync_v2, (const CUDA_MEMCPY3D *copy, CUstream stream), (copy, stream))
COPY_IN_STREAM(cuMemcpy3DPeerAsync, (const CUDA_MEMCPY3D_PEER *copy, CUstream stream), (copy, stream))
COPY_IN_STREAM(cuMemcpyBatchAsync,
               (CUdeviceptr * to, CUdeviceptr *from, size_t *bytes, size_t count, CUmemcpyAttributes *attributes,
                size_t *firsts, size_t kinds, size_t *failed, CUstream stream),
               (to, from, bytes, count, attributes, firsts, kinds, failed, stream))
COPY_IN_STREAM(cuMemcpyBatchAsync_v2,
               (CUdeviceptr * to, CUdeviceptr *from, size_t *bytes, size_t count, CUmemcpyAttributes *attributes,
                size_t *firsts, size_t kinds, CUstream stream),
               (to, from, bytes, count, attributes, firsts, kinds, stream))
COPY_IN_STREAM(cuMemcpy3DBatchAsync,
               (size_t count, CUDA_MEMCPY3D_BATCH_OP *copies, size_t *failed, unsigned long long flags,
                CUstream stream),
               (count, copies, failed, flags, stream))
COPY_IN_STREAM(cuMemcpy3DBatchAsync_v2,
               (size_t count, CUDA_MEMCPY3D_BATCH_OP *copies, unsigned long long flags, CUstream stream),
               (count, copies, flags, stream))
