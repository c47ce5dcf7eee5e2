// Which pointers of plain and managed memory this process has, what each was charged and to which device.
//
// Thread-safe: shards with a lock each, none held while the driver is called.
#pragma once

#include <cstdint>
#include <optional>

#include "devices.hpp"

namespace curb::shim::allocations {

struct Allocation {
    Device *device = nullptr;
    CUcontext context = nullptr;  // destroying it frees the memory
    Bytes bytes = 0;
    Kind kind = Kind::plain;
    bool reusable = false;  // by a request for exactly as many bytes: cuMemAlloc gave it
    bool shared = false;    // others than this process's kernels may reach it
    friend bool operator==(const Allocation &, const Allocation &) = default;
};

// Records what the driver just handed out and returns how many bytes of the device it takes that were not taken before.
// None: no host memory for the record, and the allocation must be undone.
std::optional<Bytes> add(CUdeviceptr pointer, const Allocation &allocation) noexcept;

// What is known of a pointer.
std::optional<Allocation> find(CUdeviceptr pointer) noexcept;

// Forgets the pointer before the driver frees it (afterwards another thread may get the same one). None: not known.
std::optional<Allocation> forget(CUdeviceptr pointer) noexcept;
// Notes that others may reach this memory (another process, another device of the machine). Unknown pointers pass.
void share(CUdeviceptr pointer) noexcept;

// The block is kept for reuse, or no longer: it is handed out again, or about to be freed. Device::cached follows; the
// charge stays as it is.
void keep(CUdeviceptr pointer, const Allocation &allocation) noexcept;
void use_again(CUdeviceptr pointer, const Allocation &allocation) noexcept;

// The driver refused to free it after all, or it is handed out again. False: no host memory for the record.
bool remember(CUdeviceptr pointer, const Allocation &allocation) noexcept;
// Credits the device once the driver has freed it, and returns by how much. The driver gives some memory back at a
// synchronisation alone: it stays in the overhead until NVML tells that it has gone, or, where NVML does not, is no
// room until curb has synchronised.
enum class Returned { now, when_measured, at_sync };
Bytes credit(CUdeviceptr pointer, const Allocation &allocation, Returned returned = Returned::now) noexcept;

// The context is gone, and its memory with it.
void drop_context(CUcontext context) noexcept;

}  // namespace curb::shim::allocations
