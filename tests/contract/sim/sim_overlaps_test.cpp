// Overlaps: two kernels that have a block at the same time.
#include "sim.h"

#include "contract.hpp"
#include "images.hpp"

using namespace contract;

TEST_CASE("two kernels on a block at the same time are counted, and one after the other are not") {
    const Gpu gpu;
    const Module module(kBusyImage);
    const CUfunction busy = module.function("busy");
    const Stream one, other;
    const CUdeviceptr block = allocate(2 * kMiB);
    const CUdeviceptr second = allocate(2 * kMiB);

    run_busy(busy, one, block);
    run_busy(busy, one, block);  // in order
    run_busy(busy, other, second);
    CHECK(curb_sim_overlaps(0) == 0);
    CHECK(is_seen_in_progress([&] {
        REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
        run_busy(busy, one, block);
        run_busy(busy, other, block + kMiB);
        return curb_sim_overlaps(0) != 0;
    }));
    CHECK(curb_sim_overlaps(0) == 1);

    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    const Event event;
    run_busy(busy, one, block);
    REQUIRE(cuEventRecord(event, one) == CUDA_SUCCESS);
    REQUIRE(cuStreamWaitEvent(other, event, 0) == CUDA_SUCCESS);
    run_busy(busy, other, block);
    CHECK(curb_sim_overlaps(0) == 1);
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    run_busy(busy, one, block);
    CHECK(curb_sim_overlaps(0) == 1);
    CHECK(cuMemFree_v2(block) == CUDA_SUCCESS);  // which waits
    CHECK(cuMemFree_v2(second) == CUDA_SUCCESS);
}
