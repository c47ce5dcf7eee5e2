// Times of single driver calls, through the exported symbols. Medians in nanoseconds, as one JSON line.

#include <cuda.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "talk.hpp"

namespace {

constexpr std::size_t kPiece = 2 << 20;

// Median time of one call of `work`, from `rounds` rounds of `calls` calls: short calls are timed many at once, because
// reading the clock takes 20 ns itself.
template <class Work>
double median_ns(int rounds, int calls, Work work) {
    using Clock = std::chrono::steady_clock;
    std::vector<double> times;
    for (int round = 0; round < rounds; ++round) {
        const auto start = Clock::now();
        for (int call = 0; call < calls; ++call) work();
        times.push_back(std::chrono::duration<double, std::nano>(Clock::now() - start).count() / calls);
    }
    std::nth_element(times.begin(), times.begin() + rounds / 2, times.end());
    return times[rounds / 2];
}

}  // namespace

int main() {
    CUdevice device = 0;
    CUcontext context = nullptr;
    MUST(cuInit(0), CUDA_SUCCESS);
    MUST(cuDeviceGet(&device, 0), CUDA_SUCCESS);
    MUST(cuDevicePrimaryCtxRetain(&context, device), CUDA_SUCCESS);
    MUST(cuCtxSetCurrent(context), CUDA_SUCCESS);
    CUstream stream = nullptr;
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    CUmemoryPool pool = nullptr;
    cuuint64_t keep_all = ~cuuint64_t{0};
    MUST(cuDeviceGetDefaultMemPool(&pool, device), CUDA_SUCCESS);
    MUST(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep_all), CUDA_SUCCESS);

    const auto plain = [] {
        CUdeviceptr piece = 0;
        MUST(cuMemAlloc(&piece, kPiece), CUDA_SUCCESS);
        MUST(cuMemFree(piece), CUDA_SUCCESS);
    };
    const auto ordered = [=] {
        CUdeviceptr piece = 0;
        MUST(cuMemAllocAsync(&piece, kPiece, stream), CUDA_SUCCESS);
        MUST(cuMemFreeAsync(piece, stream), CUDA_SUCCESS);
    };
    const auto query = [] {
        std::size_t free = 0, total = 0;
        MUST(cuMemGetInfo(&free, &total), CUDA_SUCCESS);
    };
    plain();
    ordered();
    query();
    std::printf("{\"event\": \"done\", \"ns\": {\"cuMemAlloc + cuMemFree, 2 MiB\": %.0f, "
                "\"cuMemAllocAsync + cuMemFreeAsync, 2 MiB, pool keeps\": %.0f, \"cuMemGetInfo\": %.0f}}\n",
                median_ns(500, 1, plain), median_ns(200, 100, ordered), median_ns(200, 10, query));
}
