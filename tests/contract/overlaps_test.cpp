// Blocks that two kernels have at the same time: what the simulated device counts, and what it does not.
#include "sim.h"

#include <unistd.h>

#include "contract.hpp"
#include "images.hpp"

using namespace contract;

namespace {

void run(CUfunction busy, CUstream stream, CUdeviceptr block) {
    void *arguments[] = {&block};
    REQUIRE(cuLaunchKernel(busy, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr) == CUDA_SUCCESS);
}

}  // namespace

TEST_CASE("a block that two kernels have at the same time is counted, and one after the other is not") {
    const Gpu gpu;
    const Module module(kBusyImage);
    const CUfunction busy = module.function("busy");
    const Stream one, other;
    CUdeviceptr block = 0, second = 0;
    REQUIRE(cuMemAlloc_v2(&block, 2 * kMiB) == CUDA_SUCCESS);
    REQUIRE(cuMemAlloc_v2(&second, 2 * kMiB) == CUDA_SUCCESS);
    const uint64_t before = curb_sim_overlaps(0);
    const auto overlaps = [=] { return curb_sim_overlaps(0) - before; };

    run(busy, one, block);
    run(busy, one, block);  // in order
    run(busy, other, second);
    CHECK(overlaps() == 0);
    run(busy, other, block + kMiB);
    CHECK(overlaps() == 1);

    REQUIRE(cuStreamSynchronize(one) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(other) == CUDA_SUCCESS);
    CUevent event = nullptr;
    REQUIRE(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
    run(busy, one, block);
    REQUIRE(cuEventRecord(event, one) == CUDA_SUCCESS);
    REQUIRE(cuStreamWaitEvent(other, event, 0) == CUDA_SUCCESS);
    run(busy, other, block);
    CHECK(overlaps() == 1);
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    run(busy, one, block);
    CHECK(overlaps() == 1);
    CHECK(cuMemFree_v2(block) == CUDA_SUCCESS);  // which waits
    CHECK(cuMemFree_v2(second) == CUDA_SUCCESS);
    CHECK(cuEventDestroy_v2(event) == CUDA_SUCCESS);
}

TEST_CASE("the child: uses a block twice at once", "[.child]") {
    const Gpu gpu;
    const Module module(kBusyImage);
    const Stream one, other;
    CUdeviceptr block = 0;
    REQUIRE(cuMemAlloc_v2(&block, 2 * kMiB) == CUDA_SUCCESS);
    run(module.function("busy"), one, block);
    run(module.function("busy"), other, block);
    CHECK(curb_sim_overlaps(0) == 1);
}

TEST_CASE("the books tell of overlaps of processes that have ended") {
    const std::string state = "/tmp/curb-sim-overlaps-" + std::to_string(::getpid());
    CHECK(run_case("the child: uses a block twice at once", {"CURB_SIM_STATE=" + state}) == 0);
    const char *books = std::getenv("BOOKS");
    REQUIRE(books);
    FILE *pipe = ::popen((std::string(books) + " " + state).c_str(), "r");
    REQUIRE(pipe);
    char text[1024] = {};
    CHECK(std::fgets(text, sizeof text, pipe) != nullptr);
    CHECK(::pclose(pipe) == 0);
    CHECK_THAT(std::string(text), contains("\"overlaps\":1,\"processes\":[]"));
    ::unlink(state.c_str());
}
