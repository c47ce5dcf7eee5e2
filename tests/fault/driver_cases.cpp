// Errors of the driver that once harmed programs under curb. One failing call, as in driver_faults, does not show them.
//
//   LD_PRELOAD=libcurb.so driver_cases [CASE]
#include "contract/images.hpp"
#include "runs.hpp"
#include "sim.h"

using namespace fault;
using curb::policy::Kind;

namespace {

constexpr const char *kKeeps =
    R"({"version": 1, "gpu": {"*": {"cap": "2GiB", "cache": {"max": "1GiB", "idle": "1h"}}}})";

void fail(const char *name, int times = 1, CUresult result = CUDA_ERROR_UNKNOWN) {
    curb_sim_fail_next(name, result, times);
}

CUstream stream_of(Program &p) {
    CUstream stream = nullptr;
    DO(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    return stream;
}

}  // namespace

WAY(a_device_whose_size_is_known_late_has_its_cap, R"({"version": 1, "gpu": {"*": {"cap": "10%"}}})") {
    fail("cuDeviceTotalMem_v2");
    p.start();
    p.cap_holds(p.device_size() / 10);
}

WAY(a_capture_goes_on_when_its_end_is_refused, kKeeps) {
    p.start();
    CUstream stream = stream_of(p);
    CUgraph graph = nullptr;
    CUdeviceptr block = 0, pooled = 0;
    DO(cuMemAlloc_v2, &block, 64 * MiB);
    DO(cuMemAllocAsync, &pooled, 64 * MiB, nullptr);
    DO(cuStreamBeginCapture_v2, stream, CU_STREAM_CAPTURE_MODE_RELAXED);
    fail("cuStreamEndCapture", 1, CUDA_ERROR_NOT_PERMITTED);
    p.call("cuStreamEndCapture", CUDA_ERROR_NOT_PERMITTED, [&] { return cuStreamEndCapture(stream, &graph); });
    DO(cuStreamEndCapture, stream, &graph);
    // If the count of captures were -1, curb would not see the next one, wait for work, and break it.
    DO(cuStreamBeginCapture_v2, stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
    p.release(R"(["pools"])");
    DO(cuStreamEndCapture, stream, &graph);
    DO(cuMemFree_v2, block);
    if (p.read_books().cached != 64 * MiB) p.problem("a block is not kept, as if a capture were in progress");
}

WAY(a_capture_that_is_reported_late_ends, kKeeps) {
    p.start();
    CUstream stream = stream_of(p);
    CUgraph graph = nullptr;
    CUdeviceptr block = 0, node = 0;
    DO(cuMemAlloc_v2, &block, 64 * MiB);
    DO(cuStreamBeginCapture_v2, stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
    fail("cuStreamIsCapturing");
    DO(cuMemAllocAsync, &node, MiB, stream);  // must not break the capture
    DO(cuMemFreeAsync, node, stream);
    fail("cuStreamIsCapturing");
    DO(cuStreamEndCapture, stream, &graph);
    DO(cuMemFree_v2, block);
    if (p.read_books().cached != 64 * MiB) p.problem("a block is not kept, as if a capture were in progress");
}

WAY(a_pool_keeps_its_charge_while_the_driver_does_not_tell_its_size, kCapped) {
    p.start();
    keeping_pool(p);
    CUdeviceptr block = 0;
    DO(cuMemAllocAsync, &block, 64 * MiB, nullptr);
    fail("cuMemPoolGetAttribute", 4);
    p.holds(Kind::pools, 64 * MiB);
}

WAY(memory_of_an_unknown_pool_is_refused_under_a_cap, kCapped) {
    p.start();
    CUdeviceptr block = 0;
    fail("cuDeviceGetMemPool", 2);
    p.call("cuMemAllocAsync", CUDA_ERROR_OUT_OF_MEMORY, [&] { return cuMemAllocAsync(&block, 64 * MiB, nullptr); });
    DO(cuMemAllocAsync, &block, 64 * MiB, nullptr);
}

WAY(a_kept_block_that_cannot_be_freed_stays_kept, kKeeps) {
    p.start();
    CUdeviceptr block = 0;
    DO(cuMemAlloc_v2, &block, 64 * MiB);
    DO(cuMemFree_v2, block);
    fail("cuMemFree_v2", 2);
    p.release(R"(["cache"])");
    if (p.read_books().cached != 64 * MiB) p.problem("the block is not kept any more");
    p.release(R"(["cache"])");
    p.holds(Kind::plain, 0);
}

WAY(a_module_that_cannot_be_unloaded_again_is_the_program_s, kCapped) {
    p.start();
    CUmodule module = nullptr;
    fail("cuModuleUnload", 2);
    const CUresult result = cuModuleLoadData(&module, contract::kLargeImage);
    if (result != CUDA_SUCCESS || !module) return p.problem("the program cannot unload it");
    DO(cuModuleUnload, module);
    p.cap_holds(kCap);
}

int main(int argc, char **argv) { return run_cases(argc, argv); }
