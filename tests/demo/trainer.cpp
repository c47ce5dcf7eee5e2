// A small trainer that uses the CUDA driver as a deep learning framework does. It knows nothing of curb: it is what
// scripts/demo runs where there is no GPU with PyTorch.
//
//   trainer            reads commands from stdin, like a notebook:  fit STEPS · memory · quit
//
// What it has of a framework: an allocator that keeps freed segments (PyTorch's native one), activations in a
// stream-ordered pool that keeps everything (PyTorch's cudaMallocAsync backend sets the same threshold), and the usual
// answer to an out-of-memory error: drop the cache and try again, then halve the micro-batch and accumulate gradients.
// The arithmetic is a linear regression done on the host, sample by sample, so the loss is the same to the last digit
// however the batch is cut. There are no kernels in it: only memory and copies.
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cuda_abi.h"

namespace {

// ---- the driver, as frameworks load it ----

// clang-format off
#define DRIVER_FUNCTIONS(ROW) \
    ROW(cuInit) ROW(cuGetErrorName) ROW(cuDevicePrimaryCtxRetain) ROW(cuCtxSetCurrent) \
    ROW(cuStreamCreate) ROW(cuStreamSynchronize) ROW(cuDeviceGetDefaultMemPool) ROW(cuMemPoolSetAttribute) \
    ROW(cuMemAlloc_v2) ROW(cuMemFree_v2) ROW(cuMemAllocAsync) ROW(cuMemFreeAsync) \
    ROW(cuMemsetD8Async) ROW(cuMemcpyHtoD_v2) ROW(cuMemcpyDtoH_v2) ROW(cuMemGetInfo_v2)
// clang-format on

struct Driver {
    template <class Function>
    void load(void *library, Function *&function, const char *name) {
        function = reinterpret_cast<Function *>(dlsym(library, name));
        if (function != nullptr) return;
        std::fprintf(stderr, "trainer: %s\n", dlerror());
        std::exit(1);
    }
    Driver() {
        void *library = dlopen("libcuda.so.1", RTLD_NOW);
        if (library == nullptr) {
            std::fprintf(stderr, "trainer: %s\n", dlerror());
            std::exit(1);
        }
#define LOAD(name) load(library, name, #name);
        DRIVER_FUNCTIONS(LOAD)
#undef LOAD
    }
#define MEMBER(name) decltype(&::name) name = nullptr;
    DRIVER_FUNCTIONS(MEMBER)
#undef MEMBER
};

Driver &cuda() {
    static Driver driver;
    return driver;
}

struct OutOfMemory {
    std::size_t bytes;
};

// Frameworks turn this one error into an exception and every other into the end.
void check(CUresult result, const char *call, std::size_t bytes = 0) {
    if (result == CUDA_SUCCESS) return;
    if (result == CUDA_ERROR_OUT_OF_MEMORY) throw OutOfMemory{bytes};
    const char *name = nullptr;
    cuda().cuGetErrorName(result, &name);
    std::fprintf(stderr, "trainer: %s: %s\n", call, name ? name : "unknown error");
    std::exit(1);
}
#define CHECK(call, ...) check(cuda().call, #call, ##__VA_ARGS__)

constexpr std::size_t kMiB = std::size_t{1} << 20;

// ---- memory, as frameworks keep it ----

// Segments of cuMemAlloc that are kept when they are freed.
class CachingAllocator {
  public:
    CUdeviceptr take(std::size_t bytes) {
        if (const auto kept = free_.lower_bound(bytes); kept != free_.end()) {
            const auto [size, pointer] = *kept;
            free_.erase(kept);
            sizes_[pointer] = size;
            return pointer;
        }
        CUdeviceptr pointer = 0;
        if (cuda().cuMemAlloc_v2(&pointer, bytes) == CUDA_ERROR_OUT_OF_MEMORY) {
            drop_cache();
            CHECK(cuMemAlloc_v2(&pointer, bytes), bytes);
        }
        sizes_[pointer] = bytes;
        return pointer;
    }
    void give(CUdeviceptr pointer) { free_.emplace(sizes_.at(pointer), pointer); }
    // What torch.cuda.empty_cache() does.
    void drop_cache() {
        for (const auto &[size, pointer] : free_) CHECK(cuMemFree_v2(pointer));
        free_.clear();
    }

  private:
    std::multimap<std::size_t, CUdeviceptr> free_;
    std::map<CUdeviceptr, std::size_t> sizes_;
};

class Device {
  public:
    Device() {
        CUcontext context = nullptr;
        CHECK(cuInit(0));
        CHECK(cuDevicePrimaryCtxRetain(&context, 0));
        CHECK(cuCtxSetCurrent(context));
        CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        CUmemoryPool pool = nullptr;
        CHECK(cuDeviceGetDefaultMemPool(&pool, 0));
        std::uint64_t keep_everything = ~std::uint64_t{0};
        CHECK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep_everything));
    }

    CachingAllocator segments;
    CUstream stream = nullptr;
};

// Memory of the pool that goes back to it, on the stream, at the end of its scope.
class Activation {
  public:
    Activation(Device &device, std::size_t bytes) : device_(device) {
        if (cuda().cuMemAllocAsync(&pointer_, bytes, device.stream) == CUDA_ERROR_OUT_OF_MEMORY) {
            device.segments.drop_cache();
            CHECK(cuMemAllocAsync(&pointer_, bytes, device.stream), bytes);
        }
        // Only its beginning is written: on the simulated driver device memory is the host's.
        CHECK(cuMemsetD8Async(pointer_, 0, std::min(bytes, 64 * std::size_t{1024}), device.stream));
    }
    Activation(Activation &&other) noexcept : device_(other.device_), pointer_(std::exchange(other.pointer_, 0)) {}
    Activation(const Activation &) = delete;
    ~Activation() {
        if (pointer_ != 0) cuda().cuMemFreeAsync(pointer_, device_.stream);
    }

  private:
    Device &device_;
    CUdeviceptr pointer_ = 0;
};

// ---- the model ----

constexpr int kBatch = 256;
constexpr int kLayers = 8;
constexpr std::size_t kActivationPerSample = 2 * kMiB;  // of each layer: 4 GiB for a whole batch
constexpr std::size_t kWorkspace = 256 * kMiB;
constexpr int kFeatures = 64;
constexpr auto kLayerTime = std::chrono::milliseconds(2);  // what a GPU would take, so that it can be watched

using Vector = std::array<double, kFeatures>;

double dot(const Vector &a, const Vector &b) {
    double sum = 0;
    for (int i = 0; i < kFeatures; ++i) sum += a[i] * b[i];
    return sum;
}

// Inputs and targets of the s-th sample, the same in every run.
std::pair<Vector, double> sample(int s) {
    Vector x, truth;
    std::uint32_t state = static_cast<std::uint32_t>(s) * 2654435761U + 1;
    for (int i = 0; i < kFeatures; ++i) {
        state = state * 1664525U + 1013904223U;
        x[i] = static_cast<double>(state >> 8) / (1 << 24) - 0.5;
        truth[i] = (i % 7) - 3.0;
    }
    return {x, dot(x, truth)};
}

class Trainer {
  public:
    Trainer() {
        // Weights, gradients and two moments of Adam: 1 GiB that lives as long as the model.
        for (int i = 0; i < 4; ++i) parameters_.push_back(device_.segments.take(256 * kMiB));
        const Vector start{};
        CHECK(cuMemcpyHtoD_v2(parameters_.front(), start.data(), sizeof start));
    }

    void fit(int steps) {
        int micro_batch = kBatch, refused = 0;
        double loss = 0;
        for (int step = 0; step < steps; ++step) {
            for (;;) {
                try {
                    loss = train_step(micro_batch);
                    break;
                } catch (const OutOfMemory &) {
                    ++refused;
                    micro_batch /= 2;
                    if (micro_batch == 0) {
                        std::printf("gave up out_of_memory=%d\n", refused);
                        return;
                    }
                }
            }
        }
        std::printf("fitted steps=%d micro_batch=%d out_of_memory=%d loss=%.17g\n", steps, micro_batch, refused, loss);
    }

    static void memory() {
        std::size_t free = 0, total = 0;
        CHECK(cuMemGetInfo_v2(&free, &total));
        std::printf("memory free=%zu total=%zu\n", free, total);
    }

  private:
    double train_step(int micro_batch) {
        Vector weights, gradient{};
        CHECK(cuMemcpyDtoH_v2(weights.data(), parameters_.front(), sizeof weights));
        double loss = 0;
        for (int first = 0; first < kBatch; first += micro_batch) {
            forward_backward(micro_batch);
            for (int s = first; s < first + micro_batch; ++s) {
                const auto [x, y] = sample(s);
                const double error = dot(weights, x) - y;
                loss += error * error / kBatch;
                for (int i = 0; i < kFeatures; ++i) gradient[i] += 2 * error * x[i] / kBatch;
            }
        }
        for (int i = 0; i < kFeatures; ++i) weights[i] -= gradient[i];
        CHECK(cuMemcpyHtoD_v2(parameters_.front(), weights.data(), sizeof weights));
        return loss;
    }

    // Takes the memory of one micro-batch: each layer's activations on the way there, freed on the way back.
    void forward_backward(int micro_batch) {
        struct Workspace {
            CachingAllocator &from;
            CUdeviceptr pointer;
            ~Workspace() { from.give(pointer); }
        } const workspace{device_.segments, device_.segments.take(kWorkspace)};
        std::vector<Activation> activations;
        activations.reserve(kLayers);
        for (int layer = 0; layer < kLayers; ++layer) {
            activations.emplace_back(device_, static_cast<std::size_t>(micro_batch) * kActivationPerSample);
            std::this_thread::sleep_for(kLayerTime);
        }
        while (!activations.empty()) {
            activations.pop_back();
            std::this_thread::sleep_for(kLayerTime);
        }
        CHECK(cuStreamSynchronize(device_.stream));
    }

    Device device_;
    std::vector<CUdeviceptr> parameters_;
};

}  // namespace

int main() try {
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    Trainer trainer;
    std::printf("ready\n");
    char line[64];
    while (std::fgets(line, sizeof line, stdin) != nullptr) {
        int steps = 0;
        if (std::sscanf(line, "fit %d", &steps) == 1)
            trainer.fit(steps);
        else if (std::strcmp(line, "memory\n") == 0)
            Trainer::memory();
        else
            break;
    }
    return 0;
} catch (const OutOfMemory &error) {
    std::fprintf(stderr, "trainer: out of memory: %zu MiB for the model\n", error.bytes / kMiB);
    return 1;
}
