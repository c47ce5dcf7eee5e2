// Green contexts: their cost, and the owner of memory allocated there.
#include <utility>

#include "contract.hpp"

using namespace contract;

namespace {

struct Green : Owned<CUgreenCtx, cuGreenCtxDestroy> {
    Green() {
        CUdevResource all{}, group{}, rest{};
        unsigned groups = 1;
        CUdevResourceDesc description = nullptr;
        REQUIRE(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM) == CUDA_SUCCESS);
        REQUIRE(cuDevSmResourceSplitByCount(&group, &groups, &all, &rest, 0, 16) == CUDA_SUCCESS);
        REQUIRE(groups == 1);
        CHECK(group.sm.smCount >= 16);
        REQUIRE(cuDevResourceGenerateDesc(&description, &group, 1) == CUDA_SUCCESS);
        REQUIRE(cuGreenCtxCreate(&handle_, description, 0, CU_GREEN_CTX_DEFAULT_STREAM) == CUDA_SUCCESS);
        REQUIRE(cuCtxFromGreenCtx(&context, handle_) == CUDA_SUCCESS);
    }
    void destroy() { CHECK(cuGreenCtxDestroy(std::exchange(handle_, nullptr)) == CUDA_SUCCESS); }

    CUcontext context = nullptr;
};

}  // namespace

TEST_CASE("a green context takes 6 MiB, which the primary context keeps", "[h100]") {
    REQUIRE(cuInit(0) == CUDA_SUCCESS);
    const int64_t before = held();
    {
        const Gpu gpu;
        {
            const Green green;
            CHECK(gpu.taken() == 6 * kMiB);
        }
        CHECK(gpu.taken() == 6 * kMiB);
    }
    CHECK(held() == before);
}

TEST_CASE("a green context is current under its own handle, on its device") {
    const Gpu gpu;
    const Green green;
    CUcontext current = nullptr;
    CUdevice device = -1;
    CHECK(green.context != gpu.context);
    REQUIRE(cuCtxSetCurrent(green.context) == CUDA_SUCCESS);
    REQUIRE(cuCtxGetCurrent(&current) == CUDA_SUCCESS);
    CHECK(current == green.context);
    REQUIRE(cuCtxGetDevice(&device) == CUDA_SUCCESS);
    CHECK(device == 0);
    REQUIRE(cuCtxSetCurrent(gpu.context) == CUDA_SUCCESS);
}

TEST_CASE("memory allocated in a green context belongs to the primary one") {
    const Gpu gpu;
    Green green;
    REQUIRE(cuCtxSetCurrent(green.context) == CUDA_SUCCESS);
    const int64_t before = gpu.taken();
    const CUdeviceptr block = allocate(64 * kMiB);
    CHECK(gpu.taken() - before == 64 * kMiB);
    REQUIRE(cuCtxSetCurrent(gpu.context) == CUDA_SUCCESS);
    green.destroy();
    CHECK(gpu.taken() - before == 64 * kMiB);
    CHECK(cuMemsetD8_v2(block, 1, 64 * kMiB) == CUDA_SUCCESS);
    REQUIRE(cuMemFree_v2(block) == CUDA_SUCCESS);
    CHECK(gpu.taken() == before);
}
