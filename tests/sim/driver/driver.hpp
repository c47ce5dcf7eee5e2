// The model of one process's driver, and the look-ups that every file uses.
//
// Rules: everything here is under the model's lock, taken by Call (entry.hpp). The root is made by the first cuInit and
// never destroyed: programs call the driver from atexit handlers and from threads that outlive main.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "abi/cuda_abi.h"
#include "address_space.hpp"
#include "capture.hpp"
#include "contexts.hpp"
#include "entry.hpp"
#include "graphs.hpp"
#include "handles.hpp"
#include "machine.hpp"
#include "pools.hpp"
#include "streams.hpp"
#include "vmm.hpp"

namespace curb::sim {

// A range of device addresses in use.
struct Allocation {
    enum class Kind { plain, managed, pool, graph, mapping, ipc, pool_import, external, global };
    Kind kind;
    CUdeviceptr start;
    uint64_t bytes;  // as requested
    int device;
    CUcontext context = nullptr;
    Pool *pool = nullptr;                     // pool
    CUmemGenericAllocationHandle handle = 0;  // mapping
    bool accessible = true;                   // mapping: after cuMemSetAccess
    CUdeviceptr range = 0;                    // ipc, pool_import, external: the range mapped for it
    uint64_t range_size = 0;
    uint64_t shared_id = 0;  // ipc: what the machine knows it by, and how often it is open
    int opens = 1;
    uint64_t id = next_handle();  // CU_POINTER_ATTRIBUTE_BUFFER_ID
    bool sync_memops = false;     // CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
};

struct Device {
    int index;          // CUDA's ordinal
    int gpu;            // the machine's number, and NVML's
    CUcontext primary;  // the handle, the same for as long as the process lives
    int primary_references = 0;
    unsigned primary_flags = 0;
    Pool *default_pool = nullptr;
    Pool *current_pool = nullptr;
    GraphReserve graph_reserve = {};
};

// Plain memory that was freed in a stream: its address is gone at once, its memory once the host has seen the stream
// reach the free (docs/results/driver.md).
struct LateFree {
    CUcontext context;
    CUdeviceptr start;
    uint64_t stream_id, ticket;
};

struct Driver {
    std::unique_ptr<Machine> machine;
    std::vector<Device> devices;
    AddressSpace addresses;
    std::map<CUdeviceptr, Allocation> allocations;  // by start
    uint64_t last_ticket = 0;                       // numbers the work submitted to streams, in order

    Pool *default_host_pool = nullptr;
    Pool *current_host_pool = nullptr;
    std::vector<LateFree> late_frees;
    std::vector<std::unique_ptr<Pool>> dying_pools;  // destroyed by the program, allocations still live
    VmmBooks vmm_books;
    std::map<CUdeviceptr, std::shared_ptr<GraphMemory>> live_graph_memory;
    std::vector<std::unique_ptr<Capture>> captures;
};

// Exists once cuInit has succeeded.
Driver &driver();

// State of the calling thread. No destructor: calls may come from other libraries' thread-exit handlers.
struct Thread {
    static constexpr int kDeepest = 64;
    CUcontext stack[kDeepest];
    int depth;
    CUstreamCaptureMode capture_mode;  // zero is CU_STREAM_CAPTURE_MODE_GLOBAL, the driver's default
    NullStream null_stream;            // that the current call means
    uint64_t id;                       // 0 until asked for
};
Thread &this_thread();
uint64_t this_thread_id();

// Throws CUDA_ERROR_INVALID_DEVICE if there is none.
Device *find_device(CUdevice device);
Device &device_at(int index);  // `index` must be valid
// Throws CUDA_ERROR_INVALID_CONTEXT if the thread has none, CUDA_ERROR_CONTEXT_IS_DESTROYED if it is gone.
Context *current_context();
// Returns the context of a handle; for a green context, its primary context. Null if there is none.
Context *find_context(CUcontext handle);

DeviceMemory memory_of(int device);
// Throws CUDA_ERROR_OUT_OF_MEMORY if the device has no room.
void charge(int device, Use use, uint64_t bytes);
void credit(int device, Use use, uint64_t bytes);
// Of memory that other processes may have.
void credit_shared(uint64_t id, int device, Use use, uint64_t bytes);

Allocation *find_allocation(CUdeviceptr start);      // that begins there; null if none does
Allocation *allocation_around(CUdeviceptr address);  // that contains it; null if none does
Allocation &add_allocation(Allocation allocation);
void free_managed(const Allocation &allocation);  // memory and addresses; the caller erases the entry

}  // namespace curb::sim
