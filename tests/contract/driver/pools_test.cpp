// Stream-ordered memory: when pools keep it, and when they give it back.
#include "contract.hpp"

using namespace contract;

namespace {

constexpr auto kReserved = CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;
constexpr auto kUsed = CU_MEMPOOL_ATTR_USED_MEM_CURRENT;

struct Pool : Owned<CUmemoryPool, cuMemPoolDestroy> {
    explicit Pool(uint64_t threshold) {
        const CUmemPoolProps properties = pool_on(CU_MEM_LOCATION_TYPE_DEVICE, 0);
        REQUIRE(cuMemPoolCreate(&handle_, &properties) == CUDA_SUCCESS);
        REQUIRE(cuMemPoolSetAttribute(handle_, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold) == CUDA_SUCCESS);
    }
};

CUdeviceptr allocate(CUmemoryPool pool, uint64_t bytes, CUstream stream) {
    CUdeviceptr start = 0;
    REQUIRE(cuMemAllocFromPoolAsync(&start, bytes, pool, stream) == CUDA_SUCCESS);
    return start;
}

}  // namespace

TEST_CASE("a pool above its threshold gives freed memory back at the next synchronisation of any kind") {
    const Gpu gpu;
    const Stream stream;
    const Event event;
    const Pool pool(0);
    const CUdeviceptr block = allocate(pool, kGiB, stream);
    CHECK(gpu.taken() == kGiB);
    REQUIRE(cuMemFreeAsync(block, stream) == CUDA_SUCCESS);
    REQUIRE(cuEventRecord(event, stream) == CUDA_SUCCESS);
    CHECK(attribute(pool, kUsed) == 0);
    CHECK(attribute(pool, kReserved) == kGiB);
    SECTION("of the stream") { CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS); }
    SECTION("of an event") { CHECK(cuEventSynchronize(event) == CUDA_SUCCESS); }
    SECTION("of the context") { CHECK(cuCtxSynchronize() == CUDA_SUCCESS); }
    CHECK(attribute(pool, kReserved) == 0);
    CHECK(gpu.taken() == 0);
}

TEST_CASE("a pool below its threshold keeps what is freed until the threshold is 0 and the stream synchronised again") {
    const Gpu gpu;
    const Stream stream;
    const Pool pool(~uint64_t{0});
    REQUIRE(cuMemFreeAsync(allocate(pool, kGiB, stream), stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(attribute(pool, kReserved) == kGiB);
    CHECK(gpu.taken() == kGiB);
    uint64_t threshold = 0;
    REQUIRE(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold) == CUDA_SUCCESS);
    CHECK(gpu.taken() == kGiB);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(gpu.taken() == 0);
}

TEST_CASE("trimming gives back no memory whose free the host has not seen complete") {
    const Gpu gpu;
    const Stream stream;
    const Pool pool(~uint64_t{0});
    REQUIRE(cuMemFreeAsync(allocate(pool, kGiB, stream), stream) == CUDA_SUCCESS);
    REQUIRE(cuMemPoolTrimTo(pool, 0) == CUDA_SUCCESS);
    CHECK(gpu.taken() == kGiB);

    SECTION("but all of it after the stream was synchronised") {
        REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
        REQUIRE(cuMemPoolTrimTo(pool, 0) == CUDA_SUCCESS);
        CHECK(gpu.taken() == 0);
    }
    SECTION("nor after an event recorded behind them was queried") {
        const Event event;
        REQUIRE(cuEventRecord(event, stream) == CUDA_SUCCESS);
        while (cuEventQuery(event) == CUDA_ERROR_NOT_READY) {
        }
        REQUIRE(cuMemPoolTrimTo(pool, 0) == CUDA_SUCCESS);
        CHECK(gpu.took(kGiB));
    }
    SECTION("nor after another stream was synchronised") {
        const Stream other;
        REQUIRE(cuStreamSynchronize(other) == CUDA_SUCCESS);
        REQUIRE(cuMemPoolTrimTo(pool, 0) == CUDA_SUCCESS);
        CHECK(gpu.took(kGiB));
    }
}

TEST_CASE("trimming leaves memory in use, and as much as it is asked to keep") {
    const Gpu gpu;
    const Stream stream;
    const Pool pool(~uint64_t{0});
    const CUdeviceptr kept = allocate(pool, 256 * kMiB, stream);
    const CUdeviceptr freed = allocate(pool, 256 * kMiB, stream);
    const CUdeviceptr freed_too = allocate(pool, 256 * kMiB, stream);
    cuMemFreeAsync(freed, stream);
    cuMemFreeAsync(freed_too, stream);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    REQUIRE(cuMemPoolTrimTo(pool, 512 * kMiB) == CUDA_SUCCESS);
    CHECK(gpu.taken() == 512 * kMiB);
    REQUIRE(cuMemPoolTrimTo(pool, 0) == CUDA_SUCCESS);
    CHECK(gpu.taken() == 256 * kMiB);
    cuMemFreeAsync(kept, stream);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
}

TEST_CASE("memory freed in a stream serves the next allocation there, without a synchronisation") {
    const Gpu gpu;
    const Stream stream;
    const Pool pool(~uint64_t{0});
    for (int round = 0; round < 100; ++round)
        REQUIRE(cuMemFreeAsync(allocate(pool, 256 * kMiB, stream), stream) == CUDA_SUCCESS);
    CHECK(attribute(pool, kReserved) == 256 * kMiB);
    CHECK(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH) == 256 * kMiB);
}

TEST_CASE("with every reuse policy off, memory freed in one stream does not serve another") {
    const Gpu gpu;
    const Stream stream, other;
    const Pool pool(~uint64_t{0});
    int off = 0;
    for (const auto policy :
         {CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
          CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES})
        REQUIRE(cuMemPoolSetAttribute(pool, policy, &off) == CUDA_SUCCESS);
    REQUIRE(cuMemFreeAsync(allocate(pool, 256 * kMiB, stream), stream) == CUDA_SUCCESS);
    REQUIRE(cuMemFreeAsync(allocate(pool, 256 * kMiB, other), other) == CUDA_SUCCESS);
    CHECK(attribute(pool, kReserved) == 512 * kMiB);
}

TEST_CASE("a pool's high marks stay until they are reset, to zero only") {
    const Gpu gpu;
    const Stream stream;
    const Pool pool(0);
    REQUIRE(cuMemFreeAsync(allocate(pool, 256 * kMiB, stream), stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) == 256 * kMiB);
    uint64_t value = 1;
    CHECK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &value) == CUDA_ERROR_INVALID_VALUE);
    value = 0;
    REQUIRE(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &value) == CUDA_SUCCESS);
    CHECK(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) == 0);
}

TEST_CASE("stream-ordered memory can be freed by cuMemFree, but its pool goes on counting it as used") {
    const Gpu gpu;
    const Stream stream;
    const Pool pool(0);
    const CUdeviceptr block = allocate(pool, 256 * kMiB, stream);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    REQUIRE(cuMemFree_v2(block) == CUDA_SUCCESS);
    CHECK(cuMemFree_v2(block) == CUDA_ERROR_INVALID_VALUE);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(gpu.taken() == 0);
    CHECK(attribute(pool, kReserved) == 0);
    CHECK(attribute(pool, kUsed) == 256 * kMiB);
}

TEST_CASE("cuMemFreeAsync accepts a plain block, whose memory is back once the stream was synchronised") {
    const Gpu gpu;
    const Stream stream;
    const CUdeviceptr block = allocate(64 * kMiB);
    REQUIRE(cuMemFreeAsync(block, stream) == CUDA_SUCCESS);
    CHECK(gpu.taken() == 64 * kMiB);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(gpu.taken() == 0);
    CHECK(cuMemFree_v2(block) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("cuMemFreeAsync refuses managed memory") {
    const Gpu gpu;
    const Stream stream;
    CUdeviceptr block = 0;
    REQUIRE(cuMemAllocManaged(&block, 64 * kMiB, CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS);
    CHECK(cuMemFreeAsync(block, stream) == CUDA_ERROR_NOT_SUPPORTED);
    CHECK(cuMemFree_v2(block) == CUDA_SUCCESS);
}

TEST_CASE("cuMemFree waits for all work, but the host then has seen no stream's frees complete") {
    const Gpu gpu;
    const Stream stream;
    const Pool pool(~uint64_t{0});
    const CUdeviceptr plain = allocate(4 * kMiB);
    REQUIRE(cuMemFreeAsync(allocate(pool, 256 * kMiB, stream), stream) == CUDA_SUCCESS);
    REQUIRE(cuMemFree_v2(plain) == CUDA_SUCCESS);
    REQUIRE(cuMemPoolTrimTo(pool, 0) == CUDA_SUCCESS);
    CHECK(gpu.took(256 * kMiB));
}

TEST_CASE("a pool on a NUMA node of the host takes nothing of the device") {
    const Gpu gpu;
    const Stream stream;
    const CUmemPoolProps properties = pool_on(CU_MEM_LOCATION_TYPE_HOST_NUMA, 0);
    CUmemoryPool pool = nullptr;
    REQUIRE(cuMemPoolCreate(&pool, &properties) == CUDA_SUCCESS);
    const CUdeviceptr block = allocate(pool, 256 * kMiB, stream);
    CHECK(gpu.taken() == 0);
    REQUIRE(cuMemFreeAsync(block, stream) == CUDA_SUCCESS);
    REQUIRE(cuMemPoolDestroy(pool) == CUDA_SUCCESS);
}

TEST_CASE("a destroyed pool holds its memory until its last allocation is freed") {
    const Gpu gpu;
    const Stream stream;
    const CUmemPoolProps properties = pool_on(CU_MEM_LOCATION_TYPE_DEVICE, 0);
    CUmemoryPool pool = nullptr;
    REQUIRE(cuMemPoolCreate(&pool, &properties) == CUDA_SUCCESS);
    const CUdeviceptr block = allocate(pool, 256 * kMiB, stream);
    REQUIRE(cuMemPoolDestroy(pool) == CUDA_SUCCESS);
    CHECK(gpu.taken() == 256 * kMiB);
    REQUIRE(cuMemsetD8Async(block, 1, kMiB, stream) == CUDA_SUCCESS);
    REQUIRE(cuMemFreeAsync(block, stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(gpu.taken() == 0);
}

TEST_CASE("cuMemAllocAsync uses the device's current pool, the default one to begin with") {
    const Gpu gpu;
    const Stream stream;
    const Pool pool(0);
    CUmemoryPool current = nullptr;
    const CUmemoryPool standard = default_pool();
    REQUIRE(cuDeviceGetMemPool(&current, 0) == CUDA_SUCCESS);
    CHECK(current == standard);
    const uint64_t used_before = attribute(standard, kUsed);
    REQUIRE(cuDeviceSetMemPool(0, pool) == CUDA_SUCCESS);
    CUdeviceptr block = 0;
    REQUIRE(cuMemAllocAsync(&block, kMiB, stream) == CUDA_SUCCESS);
    CHECK(attribute(pool, kUsed) == kMiB);
    CHECK(attribute(standard, kUsed) == used_before);
    CUmemoryPool of = nullptr;
    REQUIRE(cuPointerGetAttribute(&of, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, block) == CUDA_SUCCESS);
    CHECK(of == pool);
    REQUIRE(cuMemFreeAsync(block, stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    REQUIRE(cuDeviceSetMemPool(0, standard) == CUDA_SUCCESS);
}

TEST_CASE("the pool of a location is the pool of the device there") {
    const Gpu gpu;
    CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUmemoryPool by_location = nullptr;
    const CUmemoryPool by_device = default_pool();
    REQUIRE(cuMemGetDefaultMemPool(&by_location, &location, CU_MEM_ALLOCATION_TYPE_PINNED) == CUDA_SUCCESS);
    CHECK(by_location == by_device);
}

TEST_CASE("what a pool keeps, unused and seen complete, is taken from it when plain memory finds the device full",
          "[fills]") {
    const Gpu gpu;
    const Stream stream;
    const Pool pool(~uint64_t{0});
    size_t free = 0, total = 0;
    REQUIRE(cuMemGetInfo_v2(&free, &total) == CUDA_SUCCESS);
    REQUIRE(cuMemFreeAsync(allocate(pool, free / 2, stream), stream) == CUDA_SUCCESS);
    CUdeviceptr block = 0;
    CHECK(cuMemAlloc_v2(&block, free * 3 / 4) == CUDA_ERROR_OUT_OF_MEMORY);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    REQUIRE(cuMemAlloc_v2(&block, free * 3 / 4) == CUDA_SUCCESS);
    REQUIRE(cuMemFree_v2(block) == CUDA_SUCCESS);
}

TEST_CASE("stream-ordered calls refuse null, absurd sizes and unknown addresses, and accept size 0") {
    const Gpu gpu;
    const Stream stream;
    CUdeviceptr block = 0;
    CHECK(cuMemAllocAsync(nullptr, kMiB, stream) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemAllocAsync(&block, 0, stream) == CUDA_SUCCESS);
    CHECK(cuMemAllocAsync(&block, size_t{1} << 63, stream) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(cuMemFreeAsync(0x1234, stream) == CUDA_ERROR_INVALID_VALUE);
    CHECK(gpu.taken() == 0);
}

TEST_CASE("the per-thread-stream form works in another stream than the legacy one") {
    const Gpu gpu;
    const Pool pool(~uint64_t{0});
    CUdeviceptr block = 0;
    REQUIRE(cuMemAllocFromPoolAsync_ptsz(&block, 256 * kMiB, pool, nullptr) == CUDA_SUCCESS);
    REQUIRE(cuMemFreeAsync_ptsz(block, nullptr) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize_ptsz(nullptr) == CUDA_SUCCESS);
    REQUIRE(cuMemPoolTrimTo(pool, 0) == CUDA_SUCCESS);
    CHECK(gpu.taken() == 0);
    unsigned long long legacy = 0, per_thread = 0;
    REQUIRE(cuStreamGetId(nullptr, &legacy) == CUDA_SUCCESS);
    REQUIRE(cuStreamGetId_ptsz(nullptr, &per_thread) == CUDA_SUCCESS);
    CHECK(legacy != per_thread);
}
