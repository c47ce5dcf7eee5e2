#include "allocators.hpp"

#include <link.h>
#include <strings.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <iterator>
#include <string_view>

#include "devices.hpp"

namespace curb::shim::allocators {
namespace {

struct Row {
    const char *framework;
    const char *library;                    // part of its path
    const char *variable;                   // chooses the allocator
    std::array<const char *, 2> returning;  // values that choose an allocator that returns memory; the default does not
};

// Measured on an H200 and an H100. TensorFlow 2.21: the default keeps all memory, also with memory growth. JAX 0.11:
// the default keeps it too, with or without pre-allocation, and so does `vmm`.
constexpr Row kRows[] = {
    {"TensorFlow", "/libtensorflow_framework.so", "TF_GPU_ALLOCATOR", {"cuda_malloc_async", "cuda_malloc"}},
    {"JAX", "/xla_cuda_plugin.so", "XLA_PYTHON_CLIENT_ALLOCATOR", {"cuda_async", "platform"}},
};
// PyTorch and CuPy return memory. If one is loaded, the memory may be theirs.
constexpr const char *kOthers[] = {"/libc10_cuda.so", "/cupy/cuda/"};

constinit std::atomic<unsigned> returning{0};  // rows whose allocator returns memory, a bit each

struct Loaded {
    unsigned rows = 0;  // a bit each
    bool others = false;
};

int note(dl_phdr_info *info, std::size_t, void *into) {
    auto &loaded = *static_cast<Loaded *>(into);
    const std::string_view path = info->dlpi_name ? info->dlpi_name : "";
    for (unsigned row = 0; row < std::size(kRows); ++row)
        if (path.find(kRows[row].library) != std::string_view::npos) loaded.rows |= 1U << row;
    for (const char *other : kOthers) loaded.others |= path.find(other) != std::string_view::npos;
    return 0;
}

// True if most of the program's memory is outside pools.
bool is_outside_pools() noexcept {
    Bytes outside = 0, pools = 0;
    for (const Device &device : devices::all()) {
        outside += device.ledger.of(Kind::plain) + device.ledger.of(Kind::vmm);
        pools += device.ledger.of(Kind::pools);
    }
    return outside > pools;
}

}  // namespace

void read_environment() noexcept {
    unsigned rows = 0;
    for (unsigned row = 0; row < std::size(kRows); ++row) {
        const char *chosen = getenv(kRows[row].variable);
        const auto &values = kRows[row].returning;
        if (chosen && std::any_of(values.begin(), values.end(),
                                  [&](const char *value) { return strcasecmp(chosen, value) == 0; }))
            rows |= 1U << row;
    }
    returning.store(rows, std::memory_order_release);
}

std::vector<std::string> returning_nothing() {
    std::vector<std::string> out;
    if (!is_outside_pools()) return out;
    Loaded loaded;
    dl_iterate_phdr(note, &loaded);
    if (loaded.others) return out;
    const unsigned rows = loaded.rows & ~returning.load(std::memory_order_acquire);
    for (unsigned row = 0; row < std::size(kRows); ++row)
        if ((rows & 1U << row) != 0) out.emplace_back(kRows[row].framework);
    return out;
}

}  // namespace curb::shim::allocators
