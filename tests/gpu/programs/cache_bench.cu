// Pairs of an allocation and its free at each size, each pair timed by itself: `cache_bench PAIRS`. One JSON line, with
// the median and the 99th percentile in microseconds.
//
// The stream-ordered pairs come from a pool that keeps everything: what a program gets that was written for it.

#include <cuda.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "talk.hpp"

namespace {

constexpr std::size_t kKiB = 1 << 10, kMiB = 1 << 20, kGiB = 1 << 30;
constexpr std::size_t kSizes[] = {4 * kKiB, 64 * kKiB, kMiB, 2 * kMiB, 32 * kMiB, 256 * kMiB, kGiB, 8 * kGiB};

struct Times {
    double median = 0;
    double p99 = 0;
};

// Large pairs take tens of milliseconds on the bare driver: fewer of them.
int pairs_of(std::size_t bytes, int pairs) { return bytes >= 4 * kGiB ? std::max(pairs / 50, 20) : pairs; }

template <class Pair>
Times times_of(int pairs, Pair pair) {
    using Clock = std::chrono::steady_clock;
    for (int i = 0; i < 3; ++i) pair();
    std::vector<double> times;
    for (int i = 0; i < pairs; ++i) {
        const auto start = Clock::now();
        pair();
        times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
    }
    std::sort(times.begin(), times.end());
    return {times[times.size() / 2], times[times.size() * 99 / 100]};
}

std::string as_json(const std::vector<Times> &all) {
    std::string text;
    for (std::size_t i = 0; i < all.size(); ++i) {
        char one[128];
        std::snprintf(one, sizeof one, "%s{\"bytes\": %zu, \"median_us\": %.3f, \"p99_us\": %.3f}", i ? ", " : "",
                      kSizes[i], all[i].median, all[i].p99);
        text += one;
    }
    return "[" + text + "]";
}

}  // namespace

int main(int argc, char **argv) {
    const int pairs = argc > 1 ? std::atoi(argv[1]) : 1000;
    CUdevice device = 0;
    CUcontext context = nullptr;
    MUST(cuInit(0), CUDA_SUCCESS);
    MUST(cuDeviceGet(&device, 0), CUDA_SUCCESS);
    MUST(cuDevicePrimaryCtxRetain(&context, device), CUDA_SUCCESS);
    MUST(cuCtxSetCurrent(context), CUDA_SUCCESS);
    std::vector<Times> plain, ordered;
    for (const std::size_t bytes : kSizes)
        plain.push_back(times_of(pairs_of(bytes, pairs), [=] {
            CUdeviceptr block = 0;
            MUST(cuMemAlloc(&block, bytes), CUDA_SUCCESS);
            MUST(cuMemFree(block), CUDA_SUCCESS);
        }));

    CUstream stream = nullptr;
    CUmemoryPool pool = nullptr;
    cuuint64_t keep_all = ~cuuint64_t{0};
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    MUST(cuDeviceGetDefaultMemPool(&pool, device), CUDA_SUCCESS);
    MUST(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep_all), CUDA_SUCCESS);
    for (const std::size_t bytes : kSizes)
        ordered.push_back(times_of(pairs_of(bytes, pairs), [=] {
            CUdeviceptr block = 0;
            MUST(cuMemAllocAsync(&block, bytes, stream), CUDA_SUCCESS);
            MUST(cuMemFreeAsync(block, stream), CUDA_SUCCESS);
        }));
    std::printf("{\"event\": \"done\", \"plain\": %s, \"ordered\": %s}\n", as_json(plain).c_str(),
                as_json(ordered).c_str());
}
