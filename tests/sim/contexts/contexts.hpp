// Contexts: their cost, the memory that dies with them, and each thread's stack of them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>

#include "abi/cuda_abi.h"
#include "address_space.hpp"
#include "granules.hpp"
#include "handles.hpp"
#include "identity.hpp"
#include "streams.hpp"

namespace curb::sim {

inline constexpr uint64_t kContextBytes = 518 * kMiB;  // docs/results/driver.md
inline constexpr uint64_t kDefaultStack = 1 * kKiB;    // its cost is part of the context's
inline constexpr uint64_t kStackUnit = 16;
// Bytes of device memory for each byte of CU_LIMIT_STACK_SIZE.
inline constexpr uint64_t kStacks = uint64_t{kMultiprocessors} * kResidentThreads;

struct Context {
    Context(CUcontext its_handle, int its_device, unsigned its_flags);
    Context(const Context &) = delete;
    Context &operator=(const Context &) = delete;
    // Destroys all that dies with a context: plain and managed memory, arrays, modules, streams and events.
    ~Context();

    static uint64_t stack_bytes(uint64_t limit) { return round_down(limit * kStacks, kGranule); }
    // Charges or credits the difference to the new limit, at once.
    void set_stack(uint64_t limit);
    // Charges the heap, at the first launch of a kernel that calls malloc.
    void take_heap();

    static constexpr CUresult kUnknown = CUDA_ERROR_INVALID_CONTEXT;
    CUcontext handle;
    int device;
    unsigned flags;
    int attached = 1;                                                // cuCtxAttach
    uint64_t overhead = kContextBytes - stack_bytes(kDefaultStack);  // without the stack
    size_t stack_limit = kDefaultStack;
    size_t printf_limit = 8650752;
    size_t heap_limit = 8 * kMiB;
    uint64_t heap_taken = 0;
    uint64_t code_kept = 0;  // stays when its modules are unloaded
    size_t pending_launches = 2048;
    std::set<int> peers;  // devices whose memory this context may reach

    GranuleHeap plain;
    GranuleHeap arrays;
    std::unique_ptr<Stream> legacy_stream;
    std::map<uint64_t, std::unique_ptr<Stream>> per_thread_streams;  // by this_thread_id()
};

// A handle for some of a device's multiprocessors, in its primary context.
struct GreenContext {
    explicit GreenContext(int its_device) : context(make_handle<CUcontext>()), device(its_device) {}
    GreenContext(const GreenContext &) = delete;
    GreenContext &operator=(const GreenContext &) = delete;
    ~GreenContext() { free_handle(context); }

    static constexpr CUresult kUnknown = CUDA_ERROR_INVALID_CONTEXT;
    CUgreenCtx handle = nullptr;
    CUcontext context;
    int device;
};

struct Device;
Context *retain_primary(Device &device);
void release_primary(Device &device);

}  // namespace curb::sim
