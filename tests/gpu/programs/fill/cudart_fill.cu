// Fills the GPU up to the cap through the CUDA runtime, static or shared: first by cudaMalloc, then by cudaMallocAsync from
// a pool that keeps freed memory. Installs a SIGUSR1 handler of its own before it uses CUDA.
//
// Its events are those of fill.py, with "full_async" for the second fill.

#include <cuda_runtime.h>

#include <csignal>
#include <vector>

#include "../talk.hpp"

namespace {

constexpr std::size_t kMiB = 1 << 20;
constexpr std::size_t kSizes[] = {256 * kMiB, 32 * kMiB, 2 * kMiB};

volatile std::sig_atomic_t handled = 0;
void on_signal(int) { handled = handled + 1; }

__global__ void add_one(int *values, int count) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) values[i] += 1;
}

bool compute() {
    constexpr int kCount = 1 << 20;
    std::vector<int> values(kCount, 41);
    int *device = nullptr;
    if (cudaMalloc(&device, kCount * sizeof(int)) != cudaSuccess) return false;
    cudaMemcpy(device, values.data(), kCount * sizeof(int), cudaMemcpyHostToDevice);
    add_one<<<kCount / 256, 256>>>(device, kCount);
    const cudaError_t copied = cudaMemcpy(values.data(), device, kCount * sizeof(int), cudaMemcpyDeviceToHost);
    cudaFree(device);
    for (int value : values)
        if (value != 42) return false;
    return copied == cudaSuccess;
}

struct Filled {
    std::vector<void *> pieces;
    std::size_t bytes = 0;
    cudaError_t error = cudaSuccess;
    bool one_kind_of_error = true;
};

template <class Allocate>
Filled fill_up(Allocate allocate) {
    Filled filled;
    for (std::size_t size : kSizes) {
        for (;;) {
            void *piece = nullptr;
            const cudaError_t result = allocate(&piece, size);
            if (result != cudaSuccess) {
                cudaGetLastError();  // clears the out-of-memory error, which would stay the last error
                if (filled.error == cudaSuccess) filled.error = result;
                if (result != filled.error) filled.one_kind_of_error = false;
                break;
            }
            filled.pieces.push_back(piece);
            filled.bytes += size;
        }
    }
    return filled;
}

void say_filled(const char *event, const Filled &filled) {
    std::size_t free = 0, total = 0;
    MUST(cudaMemGetInfo(&free, &total), cudaSuccess);
    std::printf("{\"event\": \"%s\", \"errors\": [\"%s%s\"], \"message\": \"%s\", \"pieces\": %zu, \"filled_mib\": %zu, "
                "\"free_mib\": %zu, \"total_mib\": %zu}\n",
                event, cudaGetErrorName(filled.error), filled.one_kind_of_error ? "" : " and others",
                cudaGetErrorString(filled.error), filled.pieces.size(), filled.bytes / kMiB, free / kMiB, total / kMiB);
}

}  // namespace

int main() {
    setvbuf(stdout, nullptr, _IOLBF, 0);
    struct sigaction action{};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    sigaction(SIGUSR1, &action, nullptr);

    cudaStream_t stream = nullptr;
    MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    void *first = nullptr;
    MUST(cudaMallocAsync(&first, 2 * kMiB, stream), cudaSuccess);
    MUST(cudaFreeAsync(first, stream), cudaSuccess);
    MUST(cudaStreamSynchronize(stream), cudaSuccess);
    if (!compute()) return 3;
    std::printf("{\"event\": \"warm\"}\n");
    wait_for_command();

    Filled filled = fill_up([](void **piece, std::size_t size) { return cudaMalloc(piece, size); });
    say_filled("full", filled);
    wait_for_command();
    for (void *piece : filled.pieces) MUST(cudaFree(piece), cudaSuccess);

    cudaMemPool_t pool = nullptr;
    unsigned long long keep_all = ~0ULL;
    MUST(cudaDeviceGetDefaultMemPool(&pool, 0), cudaSuccess);
    MUST(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep_all), cudaSuccess);
    filled = fill_up([=](void **piece, std::size_t size) { return cudaMallocAsync(piece, size, stream); });
    say_filled("full_async", filled);
    wait_for_command();
    for (void *piece : filled.pieces) MUST(cudaFreeAsync(piece, stream), cudaSuccess);
    MUST(cudaStreamSynchronize(stream), cudaSuccess);

    const bool correct = compute();
    std::printf("{\"event\": \"idle\", \"correct\": %s, \"cached_mib\": null}\n", correct ? "true" : "false");
    wait_for_command();
    const bool again = compute();
    std::printf("{\"event\": \"done\", \"correct\": %s, \"handled\": %d}\n", again ? "true" : "false", int(handled));
}
