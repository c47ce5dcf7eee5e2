// Arrays, and the limits of a context.
#include "contract.hpp"

using namespace contract;

TEST_CASE("an array takes its bytes, and gives them back") {
    const Gpu gpu;
    const CUDA_ARRAY_DESCRIPTOR descriptor{16384, 16384, CU_AD_FORMAT_UNSIGNED_INT8, 1};  // 256 MiB
    CUarray array = nullptr;
    REQUIRE(cuArrayCreate_v2(&array, &descriptor) == CUDA_SUCCESS);
    CHECK(gpu.taken() >= 256 * kMiB);
    CHECK(gpu.taken() <= 258 * kMiB);
    CUDA_ARRAY_DESCRIPTOR told{};
    REQUIRE(cuArrayGetDescriptor_v2(&told, array) == CUDA_SUCCESS);
    CHECK(told.Width == 16384);
    REQUIRE(cuArrayDestroy(array) == CUDA_SUCCESS);
    CHECK(gpu.taken() == 0);
}

TEST_CASE("a 3D array takes its bytes too, a sparse one none") {
    const Gpu gpu;
    CUDA_ARRAY3D_DESCRIPTOR descriptor{512, 512, 256, CU_AD_FORMAT_FLOAT, 1, 0};  // 256 MiB
    CUarray array = nullptr;
    REQUIRE(cuArray3DCreate_v2(&array, &descriptor) == CUDA_SUCCESS);
    CHECK(gpu.taken() >= 256 * kMiB);
    REQUIRE(cuArrayDestroy(array) == CUDA_SUCCESS);
    descriptor.Flags = CUDA_ARRAY3D_SPARSE;
    REQUIRE(cuArray3DCreate_v2(&array, &descriptor) == CUDA_SUCCESS);
    CHECK(gpu.taken() <= 2 * kMiB);
    REQUIRE(cuArrayDestroy(array) == CUDA_SUCCESS);
}

TEST_CASE("a mipmapped array takes about a third more than its first level") {
    const Gpu gpu;
    const CUDA_ARRAY3D_DESCRIPTOR descriptor{16384, 16384, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0};
    CUmipmappedArray mipmap = nullptr;
    REQUIRE(cuMipmappedArrayCreate(&mipmap, &descriptor, 15) == CUDA_SUCCESS);
    CHECK(gpu.taken() >= 341 * kMiB);
    CHECK(gpu.taken() <= 352 * kMiB);
    REQUIRE(cuMipmappedArrayDestroy(mipmap) == CUDA_SUCCESS);
    CHECK(gpu.taken() == 0);
}

TEST_CASE("an array's memory requirements are told only when it is to be mapped later") {
    const Gpu gpu;
    CUDA_ARRAY3D_DESCRIPTOR descriptor{1024, 1024, 0, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_DEFERRED_MAPPING};
    CUarray array = nullptr;
    CUDA_ARRAY_MEMORY_REQUIREMENTS requirements{};
    REQUIRE(cuArray3DCreate_v2(&array, &descriptor) == CUDA_SUCCESS);
    REQUIRE(cuArrayGetMemoryRequirements(&requirements, array, 0) == CUDA_SUCCESS);
    CHECK(requirements.size >= 4 * kMiB);
    cuArrayDestroy(array);
    descriptor.Flags = 0;
    REQUIRE(cuArray3DCreate_v2(&array, &descriptor) == CUDA_SUCCESS);
    CHECK(cuArrayGetMemoryRequirements(&requirements, array, 0) == CUDA_ERROR_INVALID_VALUE);
    cuArrayDestroy(array);
}

TEST_CASE("the stack limit takes its size for every resident thread at once", "[h100]") {
    struct Limit {
        int64_t bytes, taken;
    };
    const Limit limit = GENERATE(Limit{8 * kKiB, 1848 * kMiB}, Limit{64 * kKiB, (1848 + 14784) * kMiB},
                                 Limit{192 * kKiB, 50424 * kMiB});
    const Gpu gpu;
    REQUIRE(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, limit.bytes) == CUDA_SUCCESS);
    CHECK(gpu.taken() == limit.taken);
    size_t now = 0;
    REQUIRE(cuCtxGetLimit(&now, CU_LIMIT_STACK_SIZE) == CUDA_SUCCESS);
    CHECK(static_cast<int64_t>(now) == limit.bytes);
}

TEST_CASE("a stack limit that does not fit is refused and takes nothing") {
    const Gpu gpu;
    CHECK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, kGiB) != CUDA_SUCCESS);
    CHECK(gpu.taken() == 0);
}

TEST_CASE("the heap limit takes nothing as long as no kernel uses it") {
    const Gpu gpu;
    REQUIRE(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, kGiB) == CUDA_SUCCESS);
    CHECK(gpu.taken() == 0);
}
