// Contexts: their cost, the memory that dies with them, and each thread's current one.
#include <cstdlib>
#include <thread>

#include "contract.hpp"

using namespace contract;

TEST_CASE("a context costs 518 MiB and gives them back", "[h100]") {
    REQUIRE(cuInit(0) == CUDA_SUCCESS);
    const int64_t before = held();
    {
        const Gpu gpu;
        CHECK(held() - before == kContext);
    }
    CHECK(held() == before);
}

TEST_CASE("every context costs the same, on one device too", "[h100]") {
    const Gpu gpu;
    std::vector<CUcontext> made(3);
    for (size_t i = 0; i < made.size(); ++i) {
        REQUIRE(cuCtxCreate_v2(&made[i], 0, 0) == CUDA_SUCCESS);
        CHECK(gpu.taken() == static_cast<int64_t>(i + 1) * kContext);
    }
    for (size_t i = made.size(); i-- > 0;) {
        REQUIRE(cuCtxDestroy_v2(made[i]) == CUDA_SUCCESS);
        CHECK(gpu.taken() == static_cast<int64_t>(i) * kContext);
    }
}

TEST_CASE("a context for which the device has no room is refused", "[fills]") {
    const Gpu gpu;
    const Filled filled;
    CUcontext made = nullptr;
    CHECK(cuCtxCreate_v2(&made, 0, 0) == CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_CASE("the end of a context frees its plain blocks and arrays; pools' blocks and mapped memory stay") {
    constexpr int64_t kSize = 64 * kMiB;
    const bool detach = GENERATE(false, true);  // cuCtxDetach of a created context destroys it
    const Gpu gpu;
    CUmemoryPool pool = nullptr;
    CUdeviceptr ordered = 0, mapped = 0;
    CUarray array = nullptr;
    CUmemGenericAllocationHandle handle = 0;
    const CUDA_ARRAY_DESCRIPTOR descriptor{4096, 4096, CU_AD_FORMAT_FLOAT, 1};  // 64 MiB
    const CUmemPoolProps pool_properties = pool_on(CU_MEM_LOCATION_TYPE_DEVICE, 0);
    const CUmemAllocationProp properties = on_device(0);
    REQUIRE(cuMemPoolCreate(&pool, &pool_properties) == CUDA_SUCCESS);
    CUcontext made = create_context();
    const CUdeviceptr plain = allocate(kSize);
    REQUIRE(cuArrayCreate_v2(&array, &descriptor) == CUDA_SUCCESS);
    REQUIRE(cuMemAllocFromPoolAsync(&ordered, kSize, pool, nullptr) == CUDA_SUCCESS);
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    REQUIRE(cuMemCreate(&handle, kSize, &properties, 0) == CUDA_SUCCESS);
    REQUIRE(cuMemAddressReserve(&mapped, kSize, 0, 0, 0) == CUDA_SUCCESS);
    REQUIRE(cuMemMap(mapped, kSize, 0, handle, 0) == CUDA_SUCCESS);
    REQUIRE((detach ? cuCtxDetach(made) : cuCtxDestroy_v2(made)) == CUDA_SUCCESS);
    CHECK(cuMemFree_v2(plain) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemFree_v2(mapped) == CUDA_ERROR_INVALID_VALUE);
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

TEST_CASE("the primary context is shared, and destroyed with its last release") {
    const auto is_active = [] {
        unsigned flags = 0;
        int active = 0;
        REQUIRE(cuDevicePrimaryCtxGetState(0, &flags, &active) == CUDA_SUCCESS);
        return active == 1;
    };
    {
        const Gpu gpu;
        CUcontext again = nullptr;
        REQUIRE(cuDevicePrimaryCtxRetain(&again, 0) == CUDA_SUCCESS);
        CHECK(again == gpu.context);
        CHECK(gpu.taken() == 0);
        REQUIRE(cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS);
        CHECK(is_active());
    }
    CHECK(is_active() == (std::getenv("CONTRACT_KEEPS") != nullptr));
}

TEST_CASE("a reset of the primary context frees what it held") {
    const Gpu gpu;
    CUdeviceptr block = 0;
    REQUIRE(cuMemAlloc_v2(&block, 256 * kMiB) == CUDA_SUCCESS);
    REQUIRE(cuDevicePrimaryCtxReset_v2(0) == CUDA_SUCCESS);
    CHECK(gpu.taken() < 0);
    CHECK(cuMemAlloc_v2(&block, kMiB) != CUDA_SUCCESS);
}

TEST_CASE("a created context is current at once; push and pop keep a stack, which a destroyed context leaves") {
    const Gpu gpu;
    CUcontext made = nullptr, current = nullptr, popped = nullptr;
    REQUIRE(cuCtxCreate_v4(&made, nullptr, 0, 0) == CUDA_SUCCESS);
    REQUIRE(cuCtxGetCurrent(&current) == CUDA_SUCCESS);
    CHECK(current == made);
    REQUIRE(cuCtxPushCurrent_v2(gpu.context) == CUDA_SUCCESS);
    REQUIRE(cuCtxPopCurrent_v2(&popped) == CUDA_SUCCESS);
    CHECK(popped == gpu.context);
    REQUIRE(cuCtxDestroy_v2(made) == CUDA_SUCCESS);
    REQUIRE(cuCtxGetCurrent(&current) == CUDA_SUCCESS);
    CHECK(current == gpu.context);
    CHECK(gpu.taken() == 0);
}

TEST_CASE("in a thread without a context calls return CUDA_ERROR_INVALID_CONTEXT") {
    const Gpu gpu;
    std::thread([] {
        CUdeviceptr block = 0;
        CUdevice device = 0;
        CUcontext current = nullptr;
        size_t free = 0, total = 0;
        CUstream stream = nullptr;
        CHECK(cuCtxGetCurrent(&current) == CUDA_SUCCESS);
        CHECK(current == nullptr);
        CHECK(cuMemAlloc_v2(&block, kMiB) == CUDA_ERROR_INVALID_CONTEXT);
        CHECK(cuMemGetInfo_v2(&free, &total) == CUDA_ERROR_INVALID_CONTEXT);
        CHECK(cuCtxGetDevice(&device) == CUDA_ERROR_INVALID_CONTEXT);
        CHECK(cuCtxSynchronize() == CUDA_ERROR_INVALID_CONTEXT);
        CHECK(cuStreamCreate(&stream, 0) == CUDA_ERROR_INVALID_CONTEXT);
    }).join();
}

TEST_CASE("devices that do not exist are refused") {
    const Gpu gpu;
    CUdevice device = 0;
    CUcontext context = nullptr;
    size_t bytes = 0;
    int count = 0;
    REQUIRE(cuDeviceGetCount(&count) == CUDA_SUCCESS);
    CHECK(cuDeviceGet(&device, count) == CUDA_ERROR_INVALID_DEVICE);
    CHECK(cuDeviceGet(&device, -1) == CUDA_ERROR_INVALID_DEVICE);
    CHECK(cuDevicePrimaryCtxRetain(&context, count) == CUDA_ERROR_INVALID_DEVICE);
    CHECK(cuDeviceTotalMem_v2(&bytes, count) == CUDA_ERROR_INVALID_DEVICE);
}

IN_A_PROCESS("before cuInit calls return CUDA_ERROR_NOT_INITIALIZED", "") {
    CUdevice device = 0;
    CUcontext context = nullptr;
    CUdeviceptr block = 0;
    int version = 0;
    CHECK(cuDeviceGet(&device, 0) == CUDA_ERROR_NOT_INITIALIZED);
    CHECK(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_ERROR_NOT_INITIALIZED);
    CHECK(cuMemAlloc_v2(&block, kMiB) == CUDA_ERROR_NOT_INITIALIZED);
    CHECK(cuDriverGetVersion(&version) == CUDA_SUCCESS);
    CHECK(version >= 12000);
}
