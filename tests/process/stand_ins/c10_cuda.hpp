// libc10_cuda.so, as far as its name, its frames on the stack and its answer to a refusal go: it gives back what it has
// cached and asks once more, and only then fails.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "cuda_abi.h"

namespace c10::cuda {

// As PyTorch counts the pools that it has made, from 1.
struct MemPool {
    static std::atomic<std::uint64_t> uid_;
    static std::atomic<std::uint64_t> uuid_;
};

struct Figures {
    std::atomic<int> refused{0};  // first attempts
    std::atomic<int> failed{0};   // second ones: PyTorch raises OutOfMemoryError
};
Figures &figures();

// What it does between the refusal and the second attempt, before it frees its cache; false: it does not ask again.
extern bool (*on_refusal)();

CUdeviceptr allocate(std::size_t bytes);  // through the cache; 0: failed
void free_to_cache(CUdeviceptr, std::size_t bytes);
CUresult allocate_uncached(CUdeviceptr *pointer, std::size_t bytes);
CUresult allocate_by_runtime_within(CUdeviceptr *pointer, std::size_t bytes);  // the same, linked with the runtime
bool expand(std::size_t bytes);                                                // a mapped segment, through the cache
CUresult probe(std::size_t bytes);  // what the device can do, from as deep within as expand()

}  // namespace c10::cuda
