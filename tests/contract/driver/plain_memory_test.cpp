// Plain device memory: the bytes that it takes, and the driver's answers about it.

#include "contract.hpp"

using namespace contract;

TEST_CASE("ten thousand blocks of 4 KiB share granules and take 40 MiB") {
    const Gpu gpu;
    std::vector<CUdeviceptr> blocks(10000);
    for (CUdeviceptr &block : blocks) {
        REQUIRE(cuMemAlloc_v2(&block, 4 * kKiB) == CUDA_SUCCESS);
        REQUIRE(block % 512 == 0);
    }
    CHECK(gpu.taken() == 40 * kMiB);
    for (const CUdeviceptr block : blocks) REQUIRE(cuMemFree_v2(block) == CUDA_SUCCESS);
    CHECK(gpu.taken() == 0);
}

TEST_CASE("a block takes whole granules of 2 MiB, with no other in them if it has more than 1 MiB") {
    struct Size {
        int64_t asked, taken;
    };
    const Size size = GENERATE(Size{1, 2 * kMiB}, Size{kMiB, 2 * kMiB}, Size{kMiB + 1, 2 * kMiB},
                               Size{2 * kMiB, 2 * kMiB}, Size{2 * kMiB + 1, 4 * kMiB}, Size{256 * kMiB, 256 * kMiB});
    const Gpu gpu;
    const int64_t used = device_used();
    std::vector<CUdeviceptr> blocks(size.asked > kMiB ? 3 : 1);
    for (CUdeviceptr &block : blocks) {
        block = allocate(size.asked);
        if (size.asked > kMiB) CHECK(block % (2 * kMiB) == 0);
    }
    const int64_t taken = static_cast<int64_t>(blocks.size()) * size.taken;
    CHECK(gpu.taken() == taken);
    CHECK(device_used() - used == taken);
    for (const CUdeviceptr block : blocks) REQUIRE(cuMemFree_v2(block) == CUDA_SUCCESS);
    CHECK(gpu.taken() == 0);
}

TEST_CASE("a granule goes back to the device when its last block is freed") {
    const Gpu gpu;
    const CUdeviceptr first = allocate(4 * kKiB), second = allocate(4 * kKiB);
    CHECK(gpu.taken() == 2 * kMiB);
    cuMemFree_v2(first);
    CHECK(gpu.taken() == 2 * kMiB);
    cuMemFree_v2(second);
    CHECK(gpu.taken() == 0);
}

TEST_CASE("allocating refuses null, zero and absurd sizes, each with its own error") {
    const Gpu gpu;
    CUdeviceptr block = 0;
    size_t pitch = 0;
    CHECK(cuMemAlloc_v2(nullptr, 1) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemAlloc_v2(&block, 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemAlloc_v2(&block, size_t{1} << 63) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(cuMemAlloc_v2(&block, ~size_t{0}) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(cuMemAllocPitch_v2(&block, &pitch, 100, 0, 4) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemAllocPitch_v2(&block, &pitch, 100, 10, 5) == CUDA_ERROR_INVALID_VALUE);
    CHECK(gpu.taken() == 0);
}

TEST_CASE("freeing null succeeds; freeing an unknown address, one inside a block, or one freed before fails") {
    const Gpu gpu;
    const Stream stream;
    CUdeviceptr ordered = 0;
    CHECK(cuMemFree_v2(0) == CUDA_SUCCESS);
    CHECK(cuMemFree_v2(0x1234) == CUDA_ERROR_INVALID_VALUE);
    const CUdeviceptr block = allocate(4 * kMiB);
    CHECK(cuMemFree_v2(block + 512) == CUDA_ERROR_INVALID_VALUE);
    CHECK(gpu.taken() == 4 * kMiB);
    CHECK(cuMemFree_v2(block) == CUDA_SUCCESS);
    CHECK(cuMemFree_v2(block) == CUDA_ERROR_INVALID_VALUE);
    REQUIRE(cuMemAllocAsync(&ordered, 4 * kMiB, stream) == CUDA_SUCCESS);
    REQUIRE(cuMemFreeAsync(ordered, stream) == CUDA_SUCCESS);
    CHECK(cuMemFreeAsync(ordered, stream) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemFree_v2(ordered) == CUDA_ERROR_INVALID_VALUE);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(gpu.taken() == 0);
}

TEST_CASE("a device that is full refuses, and serves again after a free", "[fills]") {
    const Gpu gpu;
    size_t free = 0, total = 0;
    REQUIRE(cuMemGetInfo_v2(&free, &total) == CUDA_SUCCESS);
    CUdeviceptr more = 0;
    const CUdeviceptr most = allocate(free - kGiB);
    CHECK(cuMemAlloc_v2(&more, 2 * kGiB) == CUDA_ERROR_OUT_OF_MEMORY);
    REQUIRE(cuMemFree_v2(most) == CUDA_SUCCESS);
    CHECK(cuMemAlloc_v2(&more, 2 * kGiB) == CUDA_SUCCESS);
    cuMemFree_v2(more);
}

TEST_CASE("pitched memory takes its rows at their pitch") {
    const Gpu gpu;
    CUdeviceptr block = 0;
    size_t pitch = 0;
    REQUIRE(cuMemAllocPitch_v2(&block, &pitch, 1000, 10000, 4) == CUDA_SUCCESS);
    CHECK(pitch >= 1000);
    CHECK(pitch % 512 == 0);
    CHECK(gpu.taken() == static_cast<int64_t>((pitch * 10000 + 2 * kMiB - 1) / (2 * kMiB) * 2 * kMiB));
    cuMemFree_v2(block);
}

TEST_CASE("an address inside a block finds the block") {
    const Gpu gpu;
    CUdeviceptr start = 0;
    size_t size = 0;
    const CUdeviceptr block = allocate(5 * kMiB);
    REQUIRE(cuMemGetAddressRange_v2(&start, &size, block + kMiB) == CUDA_SUCCESS);
    CHECK(start == block);
    CHECK(size == 5 * kMiB);
    int ordinal = -1;
    REQUIRE(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, block + 1) == CUDA_SUCCESS);
    CHECK(ordinal == 0);
    cuMemFree_v2(block);
    CHECK(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, block) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("copies and fills move the bytes") {
    const Gpu gpu;
    const CUdeviceptr first = allocate(kMiB);
    const CUdeviceptr second = allocate(kMiB);
    REQUIRE(cuMemsetD32_v2(first, 0xabcd1234, kMiB / 4) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyDtoD_v2(second, first, kMiB) == CUDA_SUCCESS);
    std::vector<uint32_t> words(kMiB / 4);
    REQUIRE(cuMemcpyDtoH_v2(words.data(), second, kMiB) == CUDA_SUCCESS);
    CHECK(words.front() == 0xabcd1234);
    CHECK(words.back() == 0xabcd1234);
    words[7] = 99;
    REQUIRE(cuMemcpyHtoD_v2(first, words.data(), kMiB) == CUDA_SUCCESS);
    uint32_t word = 0;
    REQUIRE(cuMemcpy(reinterpret_cast<CUdeviceptr>(&word), first + 28, 4) == CUDA_SUCCESS);
    CHECK(word == 99);
    cuMemFree_v2(first);
    CHECK(cuMemcpyDtoH_v2(words.data(), second, kMiB + 1) == CUDA_ERROR_INVALID_VALUE);
    cuMemFree_v2(second);
}

TEST_CASE("copies of two and three dimensions move the rows that they name") {
    const Gpu gpu;
    const CUdeviceptr block = allocate(kMiB);
    REQUIRE(cuMemsetD8_v2(block, 0, kMiB) == CUDA_SUCCESS);
    const std::string rows = "abcdefghijkl";
    CUDA_MEMCPY2D plane{};
    plane.srcMemoryType = CU_MEMORYTYPE_HOST, plane.srcHost = rows.data(), plane.srcPitch = 4;
    plane.dstMemoryType = CU_MEMORYTYPE_DEVICE, plane.dstDevice = block, plane.dstPitch = 16;
    plane.WidthInBytes = 2, plane.Height = 2, plane.srcY = 1, plane.srcXInBytes = 1;
    REQUIRE(cuMemcpy2DUnaligned_v2(&plane) == CUDA_SUCCESS);
    std::string found(32, '.');
    CUDA_MEMCPY3D layers{};
    layers.srcMemoryType = CU_MEMORYTYPE_DEVICE, layers.srcDevice = block, layers.srcPitch = 16, layers.srcHeight = 1;
    layers.dstMemoryType = CU_MEMORYTYPE_HOST, layers.dstHost = found.data(), layers.dstPitch = 4, layers.dstHeight = 2;
    layers.WidthInBytes = 2, layers.Height = 1, layers.Depth = 2;
    REQUIRE(cuMemcpy3D_v2(&layers) == CUDA_SUCCESS);
    CHECK(found.substr(0, 12) == "fg......jk..");
    plane.WidthInBytes = 5;  // longer than a row
    CHECK(cuMemcpy2DUnaligned_v2(&plane) == CUDA_ERROR_INVALID_VALUE);
    cuMemFree_v2(block);
}

TEST_CASE("managed memory that was touched on the device reduces its free memory, but is not in the process's figure") {
    const Gpu gpu;
    const int64_t before = device_used();
    CUdeviceptr block = 0;
    REQUIRE(cuMemAllocManaged(&block, 256 * kMiB, CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS);
    REQUIRE(cuMemsetD8_v2(block, 1, 256 * kMiB) == CUDA_SUCCESS);
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    CHECK(device_used() - before >= 256 * kMiB);
    CHECK(gpu.taken() == 0);
    const CUmemLocation cpu{CU_MEM_LOCATION_TYPE_HOST, 0};
    REQUIRE(cuMemPrefetchAsync_v2(block, 256 * kMiB, cpu, 0, nullptr) == CUDA_SUCCESS);
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    CHECK(device_used() - before >= 256 * kMiB);  // the driver keeps the granules
    REQUIRE(cuMemFree_v2(block) == CUDA_SUCCESS);
}

TEST_CASE("host memory takes nothing of the device, and the driver knows it") {
    const Gpu gpu;
    void *pinned = nullptr;
    REQUIRE(cuMemHostAlloc(&pinned, 64 * kMiB, 0) == CUDA_SUCCESS);
    unsigned type = 0;
    REQUIRE(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, reinterpret_cast<CUdeviceptr>(pinned)) ==
            CUDA_SUCCESS);
    CHECK(type == CU_MEMORYTYPE_HOST);
    CHECK(cuMemFreeHost(pinned) == CUDA_SUCCESS);
    int own = 0;
    CHECK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, reinterpret_cast<CUdeviceptr>(&own)) ==
          CUDA_ERROR_INVALID_VALUE);
}
