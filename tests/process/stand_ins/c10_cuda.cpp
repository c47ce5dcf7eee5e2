// Built without tail calls: each function is a frame.
#include "c10_cuda.hpp"

#include <map>
#include <mutex>

#include "../../families/properties.hpp"

extern "C" CUresult cudaMalloc(CUdeviceptr *pointer, std::size_t bytes);
extern "C" CUresult cudaFree(CUdeviceptr pointer);

namespace c10::cuda {

std::atomic<std::uint64_t> MemPool::uid_{1};
std::atomic<std::uint64_t> MemPool::uuid_{1};
bool (*on_refusal)() = nullptr;

Figures &figures() {
    static Figures all;
    return all;
}

namespace {

std::mutex cache_mutex;
std::multimap<std::size_t, CUdeviceptr> cache;

CUdeviceptr cached(std::size_t bytes) {
    const std::scoped_lock lock(cache_mutex);
    const auto found = cache.find(bytes);
    if (found == cache.end()) return 0;
    const CUdeviceptr block = found->second;
    cache.erase(found);
    return block;
}

void release_cached_blocks() {
    std::multimap<std::size_t, CUdeviceptr> all;
    {
        const std::scoped_lock lock(cache_mutex);
        all.swap(cache);
    }
    for (const auto &[bytes, block] : all) cudaFree(block);
}

[[gnu::noinline]] CUresult create(std::size_t bytes) {
    const CUmemAllocationProp properties = families::on_device(0);
    CUmemGenericAllocationHandle handle = 0;
    return cuMemCreate(&handle, bytes, &properties, 0);
}

[[gnu::noinline]] CUresult alloc_block(CUdeviceptr *block, std::size_t bytes, bool mapped) {
    return mapped ? create(bytes) : cudaMalloc(block, bytes);
}

[[gnu::noinline]] bool malloc_of_device(CUdeviceptr *block, std::size_t bytes, bool mapped) {
    if (alloc_block(block, bytes, mapped) == CUDA_SUCCESS) return true;
    ++figures().refused;
    if (on_refusal && !on_refusal()) return false;
    release_cached_blocks();
    if (alloc_block(block, bytes, mapped) == CUDA_SUCCESS) return true;
    ++figures().failed;
    return false;
}

}  // namespace

CUdeviceptr allocate(std::size_t bytes) {
    CUdeviceptr block = cached(bytes);
    return block || malloc_of_device(&block, bytes, false) ? block : 0;
}
void free_to_cache(CUdeviceptr block, std::size_t bytes) {
    const std::scoped_lock lock(cache_mutex);
    cache.emplace(bytes, block);
}
CUresult allocate_uncached(CUdeviceptr *pointer, std::size_t bytes) { return cudaMalloc(pointer, bytes); }
bool expand(std::size_t bytes) { return malloc_of_device(nullptr, bytes, true); }

namespace {
[[gnu::noinline]] CUresult runtime_call(CUdeviceptr *pointer, std::size_t bytes) {
    return cuMemAlloc_v2(pointer, bytes);
}
[[gnu::noinline]] CUresult runtime(CUdeviceptr *pointer, std::size_t bytes) { return runtime_call(pointer, bytes); }
}  // namespace
CUresult allocate_by_runtime_within(CUdeviceptr *pointer, std::size_t bytes) { return runtime(pointer, bytes); }

namespace {
[[gnu::noinline]] CUresult ask_device(std::size_t bytes) { return create(bytes); }
[[gnu::noinline]] CUresult find_out(std::size_t bytes) { return ask_device(bytes); }
}  // namespace
CUresult probe(std::size_t bytes) { return find_out(bytes); }

}  // namespace c10::cuda
