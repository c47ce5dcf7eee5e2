// Modules and libraries: when their code and variables take memory and give it back.
#include "contract.hpp"
#include "images.hpp"

using namespace contract;

namespace {

constexpr int64_t kLarge = 64 * kMiB;
// The most that small code takes besides: a few granules.
constexpr int64_t kCode = 6 * kMiB;

}  // namespace

TEST_CASE("a module's variable is there from the load to the unload") {
    const Gpu gpu;
    {
        const Module module(kGlobalImage);
        CHECK(gpu.taken() >= kLarge);
        CHECK(gpu.taken() <= kLarge + kCode);
        CUdeviceptr start = 0;
        size_t bytes = 0;
        REQUIRE(cuModuleGetGlobal_v2(&start, &bytes, module, "large") == CUDA_SUCCESS);
        CHECK(static_cast<int64_t>(bytes) == kLarge);
        CHECK(cuMemsetD8_v2(start, 1, bytes) == CUDA_SUCCESS);
        CHECK(cuMemFree_v2(start) != CUDA_SUCCESS);
    }
    CHECK(gpu.taken() <= kCode);
}

TEST_CASE("a library takes nothing until the program asks for a variable or a function of it") {
    const Gpu gpu;
    const CUlibrary library = load_library(kGlobalImage);
    CUkernel kernel = nullptr;
    REQUIRE(cuLibraryGetKernel(&kernel, library, "touch") == CUDA_SUCCESS);
    CHECK(gpu.taken() == 0);
    CUdeviceptr start = 0;
    size_t bytes = 0;
    REQUIRE(cuLibraryGetGlobal(&start, &bytes, library, "large") == CUDA_SUCCESS);
    CHECK(static_cast<int64_t>(bytes) == kLarge);
    CHECK(gpu.taken() >= kLarge);
    CHECK(gpu.taken() <= kLarge + kCode);
    REQUIRE(cuLibraryUnload(library) == CUDA_SUCCESS);
    CHECK(gpu.taken() <= kCode);
}

TEST_CASE("looking up a function loads it") {
    const Gpu gpu;
    const Module module(kSmallImage);
    const CUfunction function = module.function("small");
    CUfunctionLoadingState state{};
    REQUIRE(cuFuncIsLoaded(&state, function) == CUDA_SUCCESS);
    CHECK(state == CU_FUNCTION_LOADING_STATE_LOADED);
    const int64_t before = gpu.taken();
    REQUIRE(cuFuncLoad(function) == CUDA_SUCCESS);
    CHECK(gpu.taken() == before);
    CHECK(run_kernel(function) == CUDA_SUCCESS);
    CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
}

TEST_CASE("a kernel can be launched in place of a function, but is not one") {
    const Gpu gpu;
    const CUlibrary library = load_library(kSmallImage);
    CUkernel kernel = nullptr;
    REQUIRE(cuLibraryGetKernel(&kernel, library, "small") == CUDA_SUCCESS);
    const auto function = reinterpret_cast<CUfunction>(kernel);
    CUfunctionLoadingState state{};
    CHECK(cuFuncIsLoaded(&state, function) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(run_kernel(function) == CUDA_SUCCESS);
    CUlaunchConfig config{};
    config.gridDimX = config.gridDimY = config.gridDimZ = 1;
    config.blockDimX = config.blockDimY = config.blockDimZ = 1;
    CHECK(cuLaunchKernelEx(&config, function, nullptr, nullptr) == CUDA_SUCCESS);
    CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
    CHECK(cuLibraryUnload(library) == CUDA_SUCCESS);
}

TEST_CASE("a function and a kernel report their local memory") {
    const Gpu gpu;
    const Module module(kFrameImage);
    int bytes = 0;
    REQUIRE(cuFuncGetAttribute(&bytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, module.function("frame")) == CUDA_SUCCESS);
    CHECK(bytes == 8192);
    REQUIRE(cuFuncGetAttribute(&bytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, module.function("small")) == CUDA_SUCCESS);
    CHECK(bytes == 0);
    const CUlibrary library = load_library(kFrameImage);
    CUkernel kernel = nullptr;
    REQUIRE(cuLibraryGetKernel(&kernel, library, "frame") == CUDA_SUCCESS);
    REQUIRE(cuKernelGetAttribute(&bytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, kernel, 0) == CUDA_SUCCESS);
    CHECK(bytes == 8192);
    CHECK(cuFuncGetAttribute(&bytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, reinterpret_cast<CUfunction>(kernel)) ==
          CUDA_ERROR_INVALID_HANDLE);
    CHECK(cuLibraryUnload(library) == CUDA_SUCCESS);
}

TEST_CASE("a module for which the device has no room is refused", "[fills]") {
    const Gpu gpu;
    CUmodule module = nullptr;
    {
        const Filled filled;
        CHECK(cuModuleLoadData(&module, kGlobalImage) == CUDA_ERROR_OUT_OF_MEMORY);
    }
    REQUIRE(cuModuleLoadData(&module, kGlobalImage) == CUDA_SUCCESS);
    CHECK(cuModuleUnload(module) == CUDA_SUCCESS);
}

TEST_CASE("a name that is not in the image is not found") {
    const Gpu gpu;
    const Module module(kSmallImage);
    CUfunction function = nullptr;
    CHECK(cuModuleGetFunction(&function, module, "no_such_kernel") == CUDA_ERROR_NOT_FOUND);
    CUdeviceptr start = 0;
    size_t bytes = 0;
    CHECK(cuModuleGetGlobal_v2(&start, &bytes, module, "no_such_variable") == CUDA_ERROR_NOT_FOUND);
}
