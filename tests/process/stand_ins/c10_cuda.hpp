// Stands in for libc10_cuda.so: its name, its frames on the stack, and its answer to a refusal. It frees its cache,
// asks once more, and only then fails.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "abi/cuda_abi.h"

namespace c10::cuda {

// Counts the pools that were made, from 1, as PyTorch does.
struct MemPool {
    static std::atomic<std::uint64_t> uid_;
    static std::atomic<std::uint64_t> uuid_;
};

struct Figures {
    std::atomic<int> refused{0};  // first attempts
    std::atomic<int> failed{0};   // second attempts: PyTorch raises OutOfMemoryError
};
Figures &figures();

// Called after a refusal, before the cache is freed. There is no second attempt if it returns false.
extern bool (*on_refusal)();

CUdeviceptr allocate(std::size_t bytes);  // through the cache; 0: failed
void free_to_cache(CUdeviceptr, std::size_t bytes);
CUresult allocate_uncached(CUdeviceptr *pointer, std::size_t bytes);
CUresult allocate_by_runtime_within(CUdeviceptr *pointer, std::size_t bytes);  // by a runtime within the library
bool expand(std::size_t bytes);                                                // a mapped segment, through the cache
CUresult probe(std::size_t bytes);  // tries what the device can do, as deep in the stack as expand()

}  // namespace c10::cuda
