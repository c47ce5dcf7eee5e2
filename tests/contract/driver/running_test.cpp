// Work in progress: which calls wait for it.
#include <utility>

#include "contract.hpp"
#include "images.hpp"

using namespace contract;

namespace {

// 2 MiB in the current context.
class Block {
  public:
    Block() { REQUIRE(cuMemAlloc_v2(&address_, 2 * kMiB) == CUDA_SUCCESS); }
    ~Block() {
        if (address_) free();
    }
    void free() { CHECK(cuMemFree_v2(std::exchange(address_, 0)) == CUDA_SUCCESS); }
    Block(const Block &) = delete;
    Block &operator=(const Block &) = delete;
    operator CUdeviceptr() const { return address_; }

  private:
    CUdeviceptr address_ = 0;
};

}  // namespace

TEST_CASE("work in progress is not ready, and a synchronisation waits for it") {
    const Gpu gpu;
    const Module module(kBusyImage);
    const Block block;
    const Stream stream;
    const CUfunction busy = module.function("busy");
    const Event event;
    CHECK(is_seen_in_progress([&] {
        run_busy(busy, stream, block);
        REQUIRE(cuEventRecord(event, stream) == CUDA_SUCCESS);
        return cuStreamQuery(stream) == CUDA_ERROR_NOT_READY && cuEventQuery(event) == CUDA_ERROR_NOT_READY;
    }));
    SECTION("of the stream") { CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS); }
    SECTION("of the event") { CHECK(cuEventSynchronize(event) == CUDA_SUCCESS); }
    SECTION("of the context") { CHECK(cuCtxSynchronize() == CUDA_SUCCESS); }
    CHECK(cuStreamQuery(stream) == CUDA_SUCCESS);
    CHECK(cuEventQuery(event) == CUDA_SUCCESS);
}

TEST_CASE("cuMemFree waits for all work of the context, whatever it uses") {
    const Gpu gpu;
    const Module module(kBusyImage);
    const Block block;
    const Stream stream;
    const CUdeviceptr other = allocate(GENERATE(4 * kKiB, 2 * kMiB));
    run_busy(module.function("busy"), stream, block);
    CHECK(cuMemFree_v2(other) == CUDA_SUCCESS);
    CHECK(cuStreamQuery(stream) == CUDA_SUCCESS);
}

TEST_CASE("cuMemFree waits for the work of the block's context, and not for that of another") {
    const Gpu gpu;
    CUcontext second = create_context();
    {
        const Module module(kBusyImage);
        Block of_second;
        const Stream stream;
        const bool from_there = GENERATE(false, true);
        CHECK(is_seen_in_progress([&] {
            REQUIRE(cuCtxSetCurrent(gpu.context) == CUDA_SUCCESS);
            const CUdeviceptr block = allocate(2 * kMiB);
            REQUIRE(cuCtxSetCurrent(second) == CUDA_SUCCESS);
            run_busy(module.function("busy"), stream, of_second);
            if (!from_there) REQUIRE(cuCtxSetCurrent(gpu.context) == CUDA_SUCCESS);
            CHECK(cuMemFree_v2(block) == CUDA_SUCCESS);
            REQUIRE(cuCtxSetCurrent(second) == CUDA_SUCCESS);
            return cuStreamQuery(stream) == CUDA_ERROR_NOT_READY;
        }));
        // From an idle context, the free of a block still waits for the work of the block's context.
        REQUIRE(cuCtxSetCurrent(gpu.context) == CUDA_SUCCESS);
        of_second.free();
        REQUIRE(cuCtxSetCurrent(second) == CUDA_SUCCESS);
        CHECK(cuStreamQuery(stream) == CUDA_SUCCESS);
    }
    CHECK(cuCtxDestroy_v2(second) == CUDA_SUCCESS);
    REQUIRE(cuCtxSetCurrent(gpu.context) == CUDA_SUCCESS);
}
