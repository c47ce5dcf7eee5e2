// Contexts: what one costs, the memory that dies with it, and each thread's stack of them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>

#include "cuda_abi.h"
#include "granules.hpp"
#include "streams.hpp"

namespace curb::sim {

inline constexpr uint64_t kContextBytes = 518 * kMiB;  // docs/results/driver.md
inline constexpr uint64_t kDefaultStack = 1 * kKiB;    // its cost is part of the context's
// Bytes of device memory for each byte of CU_LIMIT_STACK_SIZE: threads of a multiprocessor × multiprocessors.
inline constexpr uint64_t kResidentThreads = uint64_t{2048} * 132;

struct Context {
    Context(CUcontext its_handle, int its_device, unsigned its_flags, unsigned its_version);
    Context(const Context &) = delete;
    Context &operator=(const Context &) = delete;
    // Ends all that dies with a context: plain and managed memory, arrays, modules, streams and events.
    ~Context();

    CUcontext handle;
    int device;
    unsigned flags;
    unsigned api_version;
    int attached = 1;  // cuCtxAttach
    uint64_t overhead = kContextBytes;
    size_t stack_limit = kDefaultStack;
    size_t printf_limit = 1 * kMiB;
    size_t heap_limit =
        8 * kMiB;  // takes nothing until a kernel uses it (docs/results/driver.md), and kernels here do nothing
    size_t sync_depth = 2;
    size_t pending_launches = 2048;
    std::set<int> peers;  // devices whose memory this context may reach

    GranuleHeap plain;
    GranuleHeap arrays;
    std::unique_ptr<Stream> legacy_stream;
    std::map<uint64_t, std::unique_ptr<Stream>> per_thread_streams;  // by this_thread_id()
};

}  // namespace curb::sim
