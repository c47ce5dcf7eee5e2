// What programs do wrong with memory, and what is left of it then.
#include "contract.hpp"

using namespace contract;

TEST_CASE("a block that was freed cannot be freed again") {
    const Gpu gpu;
    const Stream stream;
    CUdeviceptr block = 0;
    REQUIRE(cuMemAlloc_v2(&block, 4 * kMiB) == CUDA_SUCCESS);
    REQUIRE(cuMemFree_v2(block) == CUDA_SUCCESS);
    CHECK(cuMemFree_v2(block) == CUDA_ERROR_INVALID_VALUE);
    REQUIRE(cuMemAllocAsync(&block, 4 * kMiB, stream) == CUDA_SUCCESS);
    REQUIRE(cuMemFreeAsync(block, stream) == CUDA_SUCCESS);
    CHECK(cuMemFreeAsync(block, stream) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemFree_v2(block) == CUDA_ERROR_INVALID_VALUE);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(gpu.taken() == 0);
}

TEST_CASE("a block from inside is not freed") {
    const Gpu gpu;
    CUdeviceptr block = 0;
    REQUIRE(cuMemAlloc_v2(&block, 4 * kMiB) == CUDA_SUCCESS);
    CHECK(cuMemFree_v2(block + kMiB) == CUDA_ERROR_INVALID_VALUE);
    CHECK(gpu.taken() == 4 * kMiB);
    REQUIRE(cuMemFree_v2(block) == CUDA_SUCCESS);
    CHECK(gpu.taken() == 0);
}

TEST_CASE("cuMemFree takes a stream-ordered block, which goes back to its pool") {
    const Gpu gpu;
    const Stream stream;
    CUdeviceptr block = 0;
    CUmemoryPool pool = nullptr;
    REQUIRE(cuDeviceGetDefaultMemPool(&pool, 0) == CUDA_SUCCESS);
    const uint64_t used_before = attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
    REQUIRE(cuMemAllocAsync(&block, 64 * kMiB, stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    REQUIRE(cuMemFree_v2(block) == CUDA_SUCCESS);
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    REQUIRE(cuMemPoolTrimTo(pool, 0) == CUDA_SUCCESS);
    CHECK(gpu.taken() == 0);
    CHECK(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 0);
    // The pool goes on counting it as used.
    CHECK(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == used_before + 64 * kMiB);
}

TEST_CASE("cuMemFreeAsync takes a plain block, whose memory is back when the stream was synchronised") {
    const Gpu gpu;
    const Stream stream;
    CUdeviceptr block = 0;
    REQUIRE(cuMemAlloc_v2(&block, 64 * kMiB) == CUDA_SUCCESS);
    REQUIRE(cuMemFreeAsync(block, stream) == CUDA_SUCCESS);
    CHECK(gpu.taken() == 64 * kMiB);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(gpu.taken() == 0);
    CHECK(cuMemFree_v2(block) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("cuMemFreeAsync does not take managed memory") {
    const Gpu gpu;
    const Stream stream;
    CUdeviceptr block = 0;
    REQUIRE(cuMemAllocManaged(&block, 64 * kMiB, CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS);
    CHECK(cuMemFreeAsync(block, stream) == CUDA_ERROR_NOT_SUPPORTED);
    CHECK(cuMemFree_v2(block) == CUDA_SUCCESS);
}

TEST_CASE("with a context go its plain blocks and arrays; pools' blocks and mapped memory stay") {
    constexpr int64_t kSize = 64 * kMiB;
    const Gpu gpu;
    CUcontext made = nullptr;
    CUmemoryPool pool = nullptr;
    CUdeviceptr plain = 0, ordered = 0, mapped = 0;
    CUarray array = nullptr;
    CUmemGenericAllocationHandle handle = 0;
    const CUDA_ARRAY_DESCRIPTOR descriptor{4096, 4096, CU_AD_FORMAT_FLOAT, 1};  // 64 MiB
    const CUmemPoolProps pool_properties = pool_on(CU_MEM_LOCATION_TYPE_DEVICE, 0);
    const CUmemAllocationProp properties = on_device(0);
    REQUIRE(cuMemPoolCreate(&pool, &pool_properties) == CUDA_SUCCESS);
    REQUIRE(cuCtxCreate_v2(&made, 0, 0) == CUDA_SUCCESS);
    REQUIRE(cuMemAlloc_v2(&plain, kSize) == CUDA_SUCCESS);
    REQUIRE(cuArrayCreate_v2(&array, &descriptor) == CUDA_SUCCESS);
    REQUIRE(cuMemAllocFromPoolAsync(&ordered, kSize, pool, nullptr) == CUDA_SUCCESS);
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    REQUIRE(cuMemCreate(&handle, kSize, &properties, 0) == CUDA_SUCCESS);
    REQUIRE(cuMemAddressReserve(&mapped, kSize, 0, 0, 0) == CUDA_SUCCESS);
    REQUIRE(cuMemMap(mapped, kSize, 0, handle, 0) == CUDA_SUCCESS);
    REQUIRE(cuCtxDestroy_v2(made) == CUDA_SUCCESS);
    CHECK(gpu.took(2 * kSize));
    CHECK(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == kSize);

    REQUIRE(cuMemFreeAsync(ordered, nullptr) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(nullptr) == CUDA_SUCCESS);
    REQUIRE(cuMemPoolDestroy(pool) == CUDA_SUCCESS);
    REQUIRE(cuMemUnmap(mapped, kSize) == CUDA_SUCCESS);
    REQUIRE(cuMemRelease(handle) == CUDA_SUCCESS);
    REQUIRE(cuMemAddressFree(mapped, kSize) == CUDA_SUCCESS);
    CHECK(gpu.taken() <= 2 * kMiB);
}

TEST_CASE("a capture ends with its stream") {
    const Gpu gpu;
    CUstream stream = nullptr;
    CUdeviceptr block = 0;
    REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    REQUIRE(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    CHECK(cuStreamDestroy_v2(stream) == CUDA_SUCCESS);
    CHECK(cuMemAlloc_v2(&block, kMiB) == CUDA_SUCCESS);  // which a capture would refuse
    CHECK(cuMemFree_v2(block) == CUDA_SUCCESS);
    CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
}
