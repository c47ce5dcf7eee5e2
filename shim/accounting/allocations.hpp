// Records the pointers of plain and managed memory, with device and size.
//
// Thread-safe, in shards with a lock each. Holds no lock while calling the driver.
#pragma once

#include <optional>

#include "device/devices.hpp"

namespace curb::shim::allocations {

struct Allocation {
    Device *device = nullptr;
    CUcontext context = nullptr;  // destroying it frees the memory
    Bytes bytes = 0;
    Kind kind = Kind::plain;
    bool reusable = false;  // from cuMemAlloc: may serve a later request of exactly the same size
    bool shared = false;    // another process or another device may access it
    bool exported = false;  // another process may access it
    friend bool operator==(const Allocation &, const Allocation &) = default;
};

// Records a new allocation. Returns the bytes of the device that it newly takes (small blocks share granules). nullopt
// if host memory is exhausted: free the allocation again.
std::optional<Bytes> add(CUdeviceptr pointer, const Allocation &allocation) noexcept;

// Returns the record of a pointer; nullopt if it is unknown.
std::optional<Allocation> find(CUdeviceptr pointer) noexcept;

// Removes and returns the record. Call it before the driver frees the pointer: afterwards another thread may get the
// same one. nullopt if it is unknown.
std::optional<Allocation> forget(CUdeviceptr pointer) noexcept;
// Sets `shared`, and `exported` if `exports`. Ignores unknown pointers.
void share(CUdeviceptr pointer, bool exports) noexcept;
// True if other processes may access a block.
bool any_exported() noexcept;

// Mark a block as kept, or as no longer kept (reused, or about to be freed). Both update Device::cached but not the
// charge.
void keep(CUdeviceptr pointer, const Allocation &allocation) noexcept;
void use_again(CUdeviceptr pointer, const Allocation &allocation) noexcept;

// Restores a record: the driver failed to free it, or the block is reused. False if host memory is exhausted.
bool remember(CUdeviceptr pointer, const Allocation &allocation) noexcept;
// Credits the device after the driver has freed the memory, and returns the bytes. The driver returns some memory only
// at a synchronisation. With NVML such bytes count as overhead until a reconcile (when_measured). Without NVML no
// request may use them until curb has synchronised (at_sync).
enum class Returned { now, when_measured, at_sync };
Bytes credit(CUdeviceptr pointer, const Allocation &allocation, Returned returned = Returned::now) noexcept;

// Credits the memory of a destroyed context.
void drop_context(CUcontext context) noexcept;

}  // namespace curb::shim::allocations
