// Built without tail calls: each function is a frame.
#include "cupy.hpp"

#include <vector>

namespace cupy {

CUresult (*interpreter)(Function *function, CUdeviceptr *pointer, std::size_t bytes) = nullptr;

namespace {

std::vector<CUdeviceptr> cached;
int answered = 0;

[[gnu::noinline]] CUresult make_memory(CUdeviceptr *pointer, std::size_t bytes) {
    return runtime_malloc(pointer, bytes);
}
[[gnu::noinline]] CUresult plain_malloc(CUdeviceptr *pointer, std::size_t bytes) {
    return interpreter(make_memory, pointer, bytes);
}
[[gnu::noinline]] CUresult pool_alloc(CUdeviceptr *pointer, std::size_t bytes) {
    return interpreter(plain_malloc, pointer, bytes);
}
[[gnu::noinline]] CUresult pool_try_malloc(CUdeviceptr *pointer, std::size_t bytes) {
    if (pool_alloc(pointer, bytes) == CUDA_SUCCESS) return CUDA_SUCCESS;
    ++answered;
    for (const CUdeviceptr block : cached) cuMemFree_v2(block);
    cached.clear();
    return pool_alloc(pointer, bytes);
}
[[gnu::noinline]] CUresult pool_malloc(CUdeviceptr *pointer, std::size_t bytes) {
    return pool_try_malloc(pointer, bytes);
}

}  // namespace

CUresult alloc_without_pool(CUdeviceptr *pointer, std::size_t bytes) {
    return interpreter(plain_malloc, pointer, bytes);
}
CUresult alloc_from_pool(CUdeviceptr *pointer, std::size_t bytes) { return interpreter(pool_malloc, pointer, bytes); }
void free_to_pool(CUdeviceptr pointer) { cached.push_back(pointer); }
int refusals() { return answered; }

}  // namespace cupy
