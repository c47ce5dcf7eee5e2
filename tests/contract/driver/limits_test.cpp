// The limits of a context: the memory that setting one takes, and that a launch takes because of one.
#include "contract.hpp"
#include "images.hpp"

using namespace contract;

namespace {

size_t limit(CUlimit which) {
    size_t value = 0;
    REQUIRE(cuCtxGetLimit(&value, which) == CUDA_SUCCESS);
    return value;
}

// A kernel of the frame image, launched with the arguments of `frame`.
class Kernel {
  public:
    Kernel(const Module &module, const char *name) : function_(module.function(name)) {
        REQUIRE(cuMemAlloc_v2(&block_, 4) == CUDA_SUCCESS);
    }
    ~Kernel() { cuMemFree_v2(block_); }
    Kernel(const Kernel &) = delete;
    Kernel &operator=(const Kernel &) = delete;

    CUresult launch() {
        unsigned into = 3, from = 5;
        void *arguments[] = {&block_, &into, &from};
        const CUresult result = run_kernel(function_, nullptr, arguments);
        REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
        return result;
    }

  private:
    CUfunction function_;
    CUdeviceptr block_ = 0;
};

}  // namespace

TEST_CASE("the stack limit takes its size for every resident thread at once, and gives it back", "[h100]") {
    struct Step {
        size_t limit;
        int64_t taken;
    };
    const Gpu gpu;
    CHECK(limit(CU_LIMIT_STACK_SIZE) == 1024);
    for (const Step step : {Step{2048, 264}, Step{8192, 1848}, Step{4096, 792}, Step{65536, 16632}, Step{1024, 0},
                            Step{512, -132}, Step{16, -260}, Step{1024, 0}}) {
        CAPTURE(step.limit);
        REQUIRE(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, step.limit) == CUDA_SUCCESS);
        CHECK(gpu.taken() == step.taken * kMiB);
        CHECK(limit(CU_LIMIT_STACK_SIZE) == step.limit);
    }
}

TEST_CASE("the stack limit is rounded up to 16 bytes") {
    const Gpu gpu;
    REQUIRE(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 8200) == CUDA_SUCCESS);
    CHECK(limit(CU_LIMIT_STACK_SIZE) == 8208);
}

TEST_CASE("each context has a stack of its own, which goes with it", "[h100]") {
    const Gpu gpu;
    CUcontext made = create_context();
    const int64_t with_both = gpu.taken();
    CHECK(limit(CU_LIMIT_STACK_SIZE) == 1024);
    REQUIRE(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 8 * kKiB) == CUDA_SUCCESS);
    CHECK(gpu.taken() - with_both == 1848 * kMiB);
    REQUIRE(cuCtxDestroy_v2(made) == CUDA_SUCCESS);
    CHECK(gpu.taken() == 0);
    CHECK(limit(CU_LIMIT_STACK_SIZE) == 1024);
}

TEST_CASE("a stack limit that does not fit is refused and takes nothing", "[fills]") {
    const Gpu gpu;
    CHECK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, kGiB) != CUDA_SUCCESS);
    CHECK(gpu.taken() == 0);
    const Filled filled;
    CHECK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 8 * kKiB) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(limit(CU_LIMIT_STACK_SIZE) == 1024);
}

TEST_CASE("limits other than the stack's take nothing when they are set") {
    const Gpu gpu;
    CHECK(limit(CU_LIMIT_MALLOC_HEAP_SIZE) == 8 * kMiB);
    CHECK(limit(CU_LIMIT_PRINTF_FIFO_SIZE) == 8650752);
    REQUIRE(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, kGiB) == CUDA_SUCCESS);
    REQUIRE(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 512 * kMiB) == CUDA_SUCCESS);
    REQUIRE(cuCtxSetLimit(CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT, 65536) == CUDA_SUCCESS);
    CHECK(gpu.taken() == 0);
    CHECK(limit(CU_LIMIT_MALLOC_HEAP_SIZE) == kGiB);
}

TEST_CASE("the depth of device-side synchronisation is not a limit any more") {
    const Gpu gpu;
    size_t value = 0;
    CHECK(cuCtxSetLimit(CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH, 2) == CUDA_ERROR_UNSUPPORTED_LIMIT);
    CHECK(cuCtxGetLimit(&value, CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH) == CUDA_ERROR_UNSUPPORTED_LIMIT);
}

TEST_CASE("a kernel with more local memory than the stack limit raises it at its launch", "[h100]") {
    const Gpu gpu;
    const Module module(kFrameImage);
    Kernel frame(module, "frame"), small(module, "small");
    REQUIRE(small.launch() == CUDA_SUCCESS);
    const int64_t before = gpu.taken();
    REQUIRE(frame.launch() == CUDA_SUCCESS);
    CHECK(gpu.taken() - before == 1848 * kMiB);
    CHECK(limit(CU_LIMIT_STACK_SIZE) == 8192);

    SECTION("a small one does not lower it") {
        REQUIRE(small.launch() == CUDA_SUCCESS);
        CHECK(gpu.taken() - before == 1848 * kMiB);
    }
    SECTION("setting the limit does, until the next launch") {
        REQUIRE(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1024) == CUDA_SUCCESS);
        CHECK(gpu.taken() == before);
        REQUIRE(frame.launch() == CUDA_SUCCESS);
        CHECK(gpu.taken() - before == 1848 * kMiB);
    }
}

TEST_CASE("local memory for which the device has no room fails the launch and breaks nothing", "[fills]") {
    const Gpu gpu;
    const Module module(kFrameImage);
    Kernel frame(module, "frame"), small(module, "small");
    REQUIRE(small.launch() == CUDA_SUCCESS);
    {
        const Filled filled;
        CHECK(frame.launch() == CUDA_ERROR_OUT_OF_MEMORY);
        CHECK(small.launch() == CUDA_SUCCESS);
    }
    CHECK(frame.launch() == CUDA_SUCCESS);
}

TEST_CASE("the driver allocates the heap at the launch of a kernel that uses it, and its size is fixed then") {
    const Gpu gpu;
    REQUIRE(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 512 * kMiB) == CUDA_SUCCESS);
    const Module module(kMallocImage);
    const CUfunction function = module.function("alloc");
    const int64_t before = gpu.taken();
    CHECK(before < 512 * kMiB);
    REQUIRE(run_kernel(function) == CUDA_SUCCESS);
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    CHECK(gpu.taken() - before >= 512 * kMiB);
    CHECK(gpu.taken() - before <= 516 * kMiB);
    CHECK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 8 * kMiB) == CUDA_ERROR_INVALID_VALUE);
}
