#include "release/allocators.hpp"

#include <strings.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <iterator>
#include <string_view>

#include "base/libraries.hpp"
#include "device/devices.hpp"

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
    returning = rows;
}

std::vector<std::string> returning_nothing() {
    std::vector<std::string> out;
    if (!is_outside_pools()) return out;
    unsigned rows = 0;  // loaded ones, a bit each
    const bool others = any_library([&](const dl_phdr_info &info) {
        const std::string_view path = info.dlpi_name ? info.dlpi_name : "";
        const auto is_in_path = [&](const char *part) { return path.find(part) != std::string_view::npos; };
        for (unsigned row = 0; row < std::size(kRows); ++row)
            if (is_in_path(kRows[row].library)) rows |= 1U << row;
        return std::any_of(std::begin(kOthers), std::end(kOthers), is_in_path);
    });
    if (others) return out;
    rows &= ~returning;
    for (unsigned row = 0; row < std::size(kRows); ++row)
        if ((rows & 1U << row) != 0) out.emplace_back(kRows[row].framework);
    return out;
}

}  // namespace curb::shim::allocators
