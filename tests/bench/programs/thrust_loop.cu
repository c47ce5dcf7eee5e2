// Sorts and sums with Thrust. Each of Thrust's temporaries, and the loop's own buffer, takes a cudaMalloc and a cudaFree.
// Answers the commands of turns.py, and takes samples as it does.

#include <cuda_runtime.h>
#include <dlfcn.h>
#include <thrust/device_ptr.h>
#include <thrust/device_vector.h>
#include <thrust/execution_policy.h>
#include <thrust/reduce.h>
#include <thrust/scan.h>
#include <thrust/sequence.h>
#include <thrust/sort.h>
#include <thrust/transform.h>

#include <chrono>
#include <cstdio>
#include <vector>

#include "../../gpu/programs/talk.hpp"

namespace {

constexpr int kItems = 1 << 22;

struct Scrambled {
    unsigned seed;
    __host__ __device__ unsigned operator()(unsigned at) const { return (at + seed) * 2'654'435'761u; }
};

// Returns a sum that changes if any item is in a wrong place.
unsigned step(unsigned seed) {
    unsigned *own = nullptr;
    MUST(cudaMalloc(&own, kItems * sizeof(unsigned)), cudaSuccess);
    const thrust::device_ptr<unsigned> items(own);
    thrust::sequence(items, items + kItems);
    thrust::transform(items, items + kItems, items, Scrambled{seed});
    thrust::sort(items, items + kItems);
    thrust::device_vector<unsigned> sums(kItems);
    thrust::inclusive_scan(items, items + kItems, sums.begin());
    const unsigned sum = thrust::reduce(sums.begin(), sums.end(), 0u);
    MUST(cudaFree(own), cudaSuccess);
    return sum;
}

}  // namespace

int main() {
    std::vector<unsigned> sums;
    for (unsigned i = 0; i < 5; ++i) sums.push_back(step(i));
    const auto bench_switch = reinterpret_cast<const char *(*)(int)>(dlsym(RTLD_DEFAULT, "bench_switch"));
    int direct_first = 1;
    std::puts("{\"event\": \"ready\"}");
    std::fflush(stdout);
    char line[64];
    while (std::fgets(line, sizeof line, stdin)) {
        long count = 0;
        if (std::sscanf(line, "sample %ld", &count) == 1) {
            const auto steps = [&](long many) {
                for (long i = 0; i < many; ++i) sums.push_back(step(static_cast<unsigned>(sums.size())));
            };
            const auto timed = [&](long many) {
                steps(many / 8 + 1);  // untimed, because the process has slept or switched
                const auto start = std::chrono::steady_clock::now();
                steps(many);
                const std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - start;
                return time.count() / static_cast<double>(many);
            };
            const char *why = bench_switch ? bench_switch(0) : "libbench_switch.so is not preloaded";
            if (why) {
                std::printf("{\"event\": \"sample\", \"ns\": %.0f, \"no_direct\": \"%s\"}\n", timed(count), why);
            } else {
                double ns[2] = {};  // by the functions that the program finds, and by the driver's own
                direct_first = 1 - direct_first;
                for (const int direct : {direct_first, 1 - direct_first, 1 - direct_first, direct_first}) {
                    bench_switch(direct);
                    ns[direct] += timed((count + 1) / 2) / 2;
                }
                bench_switch(0);
                std::printf("{\"event\": \"sample\", \"ns\": %.0f, \"direct_ns\": %.0f}\n", ns[0], ns[1]);
            }
        } else {
            std::printf("{\"event\": \"finished\", \"losses\": [");
            for (std::size_t i = 0; i < sums.size(); ++i) std::printf("%s%u", i ? ", " : "", sums[i]);
            std::printf("]}\n");
        }
        std::fflush(stdout);
    }
}
