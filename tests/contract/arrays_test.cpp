// Arrays and mipmapped arrays.
#include "contract.hpp"

using namespace contract;

TEST_CASE("an array takes its bytes, and gives them back") {
    const Gpu gpu;
    const CUDA_ARRAY_DESCRIPTOR descriptor{16384, 16384, CU_AD_FORMAT_UNSIGNED_INT8, 1};  // 256 MiB
    CUarray array = nullptr;
    REQUIRE(cuArrayCreate_v2(&array, &descriptor) == CUDA_SUCCESS);
    CHECK(gpu.took(256 * kMiB));
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

TEST_CASE("an array cannot be both sparse and mapped later") {
    const Gpu gpu;
    const CUDA_ARRAY3D_DESCRIPTOR descriptor{
        4096, 4096, 0, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING};
    CUarray array = nullptr;
    CHECK(cuArray3DCreate_v2(&array, &descriptor) == CUDA_ERROR_INVALID_VALUE);
}

namespace {

struct Layout {
    CUDA_ARRAY3D_DESCRIPTOR descriptor;
    int64_t required;  // in units of 64 KiB
};
constexpr auto kFloat = CU_AD_FORMAT_FLOAT;
constexpr auto kByte = CU_AD_FORMAT_UNSIGNED_INT8;

}  // namespace

TEST_CASE("an array takes what its deferred twin requires, in whole granules", "[h100]") {
    const Layout layout = GENERATE(
        Layout{{1024, 1024, 0, kFloat, 1, 0}, 64}, Layout{{1000, 1000, 0, kFloat, 1, 0}, 63},
        Layout{{131072, 0, 0, kFloat, 1, 0}, 64}, Layout{{1, 32768, 0, kByte, 1, 0}, 32},
        Layout{{8191, 8191, 0, kFloat, 1, 0}, 4096}, Layout{{5000, 3000, 0, kFloat, 4, 0}, 3750},
        Layout{{2048, 4097, 0, kByte, 1, 0}, 132}, Layout{{512, 512, 256, kFloat, 1, 0}, 4096},
        Layout{{500, 300, 100, kFloat, 1, 0}, 1064}, Layout{{129, 129, 129, kFloat, 1, 0}, 173},
        Layout{{300, 300, 17, kFloat, 2, 0}, 361}, Layout{{1000, 1000, 6, kFloat, 1, CUDA_ARRAY3D_LAYERED}, 378},
        Layout{{512, 512, 6, kFloat, 1, CUDA_ARRAY3D_CUBEMAP}, 96},
        Layout{{1000, 0, 100, kFloat, 1, CUDA_ARRAY3D_LAYERED}, 50},
        Layout{{1024, 1024, 64, kFloat, 1, CUDA_ARRAY3D_SURFACE_LDST}, 4096});
    CAPTURE(layout.descriptor.Width, layout.descriptor.Height, layout.descriptor.Depth);
    const Gpu gpu;
    CUDA_ARRAY3D_DESCRIPTOR deferred = layout.descriptor;
    deferred.Flags |= CUDA_ARRAY3D_DEFERRED_MAPPING;
    CUarray twin = nullptr, array = nullptr;
    CUDA_ARRAY_MEMORY_REQUIREMENTS requirements{};
    REQUIRE(cuArray3DCreate_v2(&twin, &deferred) == CUDA_SUCCESS);
    REQUIRE(cuArrayGetMemoryRequirements(&requirements, twin, 0) == CUDA_SUCCESS);
    REQUIRE(cuArrayDestroy(twin) == CUDA_SUCCESS);
    CHECK(gpu.taken() == 0);
    CHECK(static_cast<int64_t>(requirements.size) == layout.required * 64 * kKiB);
    CHECK(requirements.alignment == 64 * kKiB);
    REQUIRE(cuArray3DCreate_v2(&array, &layout.descriptor) == CUDA_SUCCESS);
    const int64_t granules = (layout.required * 64 * kKiB + 2 * kMiB - 1) / (2 * kMiB);
    CHECK(gpu.taken() == granules * 2 * kMiB);
    REQUIRE(cuArrayDestroy(array) == CUDA_SUCCESS);
    CHECK(gpu.taken() == 0);
}

TEST_CASE("a mipmapped array takes what its deferred twin requires, in whole granules", "[h100]") {
    struct Levels {
        Layout layout;
        unsigned count;
    };
    const Levels levels =
        GENERATE(Levels{{{16384, 16384, 0, kByte, 1, 0}, 5462}, 15}, Levels{{{8192, 8192, 0, kFloat, 1, 0}, 5120}, 2},
                 Levels{{{5000, 3000, 0, kFloat, 1, 0}, 1256}, 13}, Levels{{{512, 512, 256, kFloat, 1, 0}, 4682}, 10},
                 Levels{{{1000, 1000, 6, kFloat, 1, CUDA_ARRAY3D_LAYERED}, 507}, 10});
    CAPTURE(levels.layout.descriptor.Width, levels.layout.descriptor.Height, levels.count);
    const Gpu gpu;
    CUDA_ARRAY3D_DESCRIPTOR deferred = levels.layout.descriptor;
    deferred.Flags |= CUDA_ARRAY3D_DEFERRED_MAPPING;
    CUmipmappedArray twin = nullptr, mipmap = nullptr;
    CUDA_ARRAY_MEMORY_REQUIREMENTS requirements{};
    REQUIRE(cuMipmappedArrayCreate(&twin, &deferred, levels.count) == CUDA_SUCCESS);
    REQUIRE(cuMipmappedArrayGetMemoryRequirements(&requirements, twin, 0) == CUDA_SUCCESS);
    REQUIRE(cuMipmappedArrayDestroy(twin) == CUDA_SUCCESS);
    CHECK(static_cast<int64_t>(requirements.size) == levels.layout.required * 64 * kKiB);
    REQUIRE(cuMipmappedArrayCreate(&mipmap, &levels.layout.descriptor, levels.count) == CUDA_SUCCESS);
    const int64_t granules = (levels.layout.required * 64 * kKiB + 2 * kMiB - 1) / (2 * kMiB);
    CHECK(gpu.taken() == granules * 2 * kMiB);
    REQUIRE(cuMipmappedArrayDestroy(mipmap) == CUDA_SUCCESS);
    CHECK(gpu.taken() == 0);
}

TEST_CASE("small arrays share granules, which they do not share with plain memory", "[h100]") {
    struct Many {
        CUDA_ARRAY_DESCRIPTOR descriptor;
        size_t count;
        int64_t taken;
    };
    const Many many =
        GENERATE(Many{{16, 16, kByte, 1}, 1000, 2 * kMiB}, Many{{64, 64, kFloat, 1}, 1000, 16 * kMiB},
                 Many{{256, 256, kFloat, 1}, 400, 100 * kMiB}, Many{{512, 512, kFloat, 1}, 100, 100 * kMiB},
                 Many{{600, 512, kFloat, 1}, 100, 200 * kMiB}, Many{{724, 724, kFloat, 1}, 50, 200 * kMiB});
    CAPTURE(many.descriptor.Width);
    const Gpu gpu;
    CUdeviceptr block = 0;
    REQUIRE(cuMemAlloc_v2(&block, 4 * kKiB) == CUDA_SUCCESS);
    const int64_t before = gpu.taken();
    std::vector<CUarray> arrays(many.count);
    for (CUarray &array : arrays) REQUIRE(cuArrayCreate_v2(&array, &many.descriptor) == CUDA_SUCCESS);
    CHECK(gpu.taken() - before >= many.taken);
    CHECK(gpu.taken() - before <= many.taken + 2 * kMiB);
    for (CUarray array : arrays) REQUIRE(cuArrayDestroy(array) == CUDA_SUCCESS);
    CHECK(gpu.taken() == before);
    REQUIRE(cuMemFree_v2(block) == CUDA_SUCCESS);
}
