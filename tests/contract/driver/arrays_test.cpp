// Arrays and mipmapped arrays.
#include "contract.hpp"

using namespace contract;

TEST_CASE("an array returns its shape, and its memory requirements only if it is deferred") {
    const unsigned flags = GENERATE(unsigned{CUDA_ARRAY3D_DEFERRED_MAPPING}, unsigned{CUDA_ARRAY3D_SPARSE}, 0U);
    const Gpu gpu;
    const CUDA_ARRAY3D_DESCRIPTOR descriptor{1024, 1024, 0, CU_AD_FORMAT_FLOAT, 1, flags};
    CUarray array = nullptr;
    CUDA_ARRAY_DESCRIPTOR reported{};
    CUDA_ARRAY_MEMORY_REQUIREMENTS requirements{};
    REQUIRE(cuArray3DCreate_v2(&array, &descriptor) == CUDA_SUCCESS);
    CHECK(gpu.took(flags ? 0 : 4 * kMiB));
    CHECK(cuArrayGetDescriptor_v2(&reported, array) == CUDA_SUCCESS);
    CHECK(reported.Width == 1024);
    const bool deferred = flags == CUDA_ARRAY3D_DEFERRED_MAPPING;
    CHECK(cuArrayGetMemoryRequirements(&requirements, array, 0) ==
          (deferred ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE));
    if (deferred) CHECK(requirements.size >= 4 * kMiB);
    REQUIRE(cuArrayDestroy(array) == CUDA_SUCCESS);
    CHECK(gpu.took(0));
}

TEST_CASE("an array cannot be both sparse and deferred") {
    const Gpu gpu;
    const CUDA_ARRAY3D_DESCRIPTOR descriptor{
        4096, 4096, 0, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING};
    CUarray array = nullptr;
    CHECK(cuArray3DCreate_v2(&array, &descriptor) == CUDA_ERROR_INVALID_VALUE);
}

namespace {

struct Layout {
    CUDA_ARRAY3D_DESCRIPTOR descriptor;
    int64_t required;     // in units of 64 KiB
    unsigned levels = 0;  // 0: an array, not a mipmapped one
};
constexpr auto kFloat = CU_AD_FORMAT_FLOAT;
constexpr auto kByte = CU_AD_FORMAT_UNSIGNED_INT8;

// The array or the mipmapped array of a layout.
class Texture {
  public:
    Texture(const Layout &layout, unsigned flags) : levels_(layout.levels) {
        CUDA_ARRAY3D_DESCRIPTOR descriptor = layout.descriptor;
        descriptor.Flags |= flags;
        REQUIRE((levels_ ? cuMipmappedArrayCreate(&mipmap_, &descriptor, levels_)
                         : cuArray3DCreate_v2(&array_, &descriptor)) == CUDA_SUCCESS);
    }
    ~Texture() { CHECK((levels_ ? cuMipmappedArrayDestroy(mipmap_) : cuArrayDestroy(array_)) == CUDA_SUCCESS); }
    Texture(const Texture &) = delete;
    Texture &operator=(const Texture &) = delete;
    CUDA_ARRAY_MEMORY_REQUIREMENTS requirements() const {
        CUDA_ARRAY_MEMORY_REQUIREMENTS reported{};
        REQUIRE((levels_ ? cuMipmappedArrayGetMemoryRequirements(&reported, mipmap_, 0)
                         : cuArrayGetMemoryRequirements(&reported, array_, 0)) == CUDA_SUCCESS);
        return reported;
    }

  private:
    unsigned levels_;
    CUarray array_ = nullptr;
    CUmipmappedArray mipmap_ = nullptr;
};

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
        Layout{{1024, 1024, 64, kFloat, 1, CUDA_ARRAY3D_SURFACE_LDST}, 4096},
        Layout{{16384, 16384, 0, kByte, 1, 0}, 5462, 15}, Layout{{8192, 8192, 0, kFloat, 1, 0}, 5120, 2},
        Layout{{5000, 3000, 0, kFloat, 1, 0}, 1256, 13}, Layout{{512, 512, 256, kFloat, 1, 0}, 4682, 10},
        Layout{{1000, 1000, 6, kFloat, 1, CUDA_ARRAY3D_LAYERED}, 507, 10});
    CAPTURE(layout.descriptor.Width, layout.descriptor.Height, layout.descriptor.Depth, layout.levels);
    const Gpu gpu;
    {
        const Texture twin(layout, CUDA_ARRAY3D_DEFERRED_MAPPING);
        CHECK(static_cast<int64_t>(twin.requirements().size) == layout.required * 64 * kKiB);
        CHECK(twin.requirements().alignment == 64 * kKiB);
        CHECK(gpu.taken() == 0);
    }
    {
        const Texture texture(layout, 0);
        CHECK(gpu.taken() == (layout.required * 64 * kKiB + 2 * kMiB - 1) / (2 * kMiB) * 2 * kMiB);
    }
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
    const CUdeviceptr block = allocate(4 * kKiB);
    const int64_t before = gpu.taken();
    std::vector<CUarray> arrays(many.count);
    for (CUarray &array : arrays) REQUIRE(cuArrayCreate_v2(&array, &many.descriptor) == CUDA_SUCCESS);
    CHECK(gpu.taken() - before >= many.taken);
    CHECK(gpu.taken() - before <= many.taken + 2 * kMiB);
    for (CUarray array : arrays) REQUIRE(cuArrayDestroy(array) == CUDA_SUCCESS);
    CHECK(gpu.taken() == before);
    REQUIRE(cuMemFree_v2(block) == CUDA_SUCCESS);
}
