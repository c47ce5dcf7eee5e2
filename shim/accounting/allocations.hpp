// Records the pointers of plain and managed memory, with device and size.
//
// Thread-safe. Holds no lock while calling the driver.
#pragma once

#include <optional>

#include "base/table.hpp"
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
    bool offered = false;   // another process may open it, and curb knows which have (vmm::lend)
    [[nodiscard]] bool is_shared() const noexcept { return shared || offered; }
    friend bool operator==(const Allocation &, const Allocation &) = default;
};
// Neighbours in the device's memory are neighbours in the table: a program that allocates one block after the other
// finds what it needs in the processor's caches, beside a million blocks too. The driver places blocks at multiples of
// 512 bytes.
struct ByPlace {
    std::size_t operator()(CUdeviceptr pointer) const noexcept { return pointer >> 9; }
};
using Blocks = Table<CUdeviceptr, Allocation, ByPlace>;
using Removal = Blocks::Removal;

// Records a new allocation. Returns the bytes of the device that it newly takes (small blocks share granules). nullopt
// if host memory is exhausted: free the allocation again.
std::optional<Bytes> add(CUdeviceptr pointer, const Allocation &allocation) noexcept;

// Returns the record of a pointer; nullopt if it is unknown.
std::optional<Allocation> find(CUdeviceptr pointer) noexcept;

// Removes the record until the Removal ends; for a call that may free the pointer.
Removal remove(CUdeviceptr pointer) noexcept;
// Sets `shared`, and `exported` if `exports`. Ignores unknown pointers.
void share(CUdeviceptr pointer, bool exports) noexcept;
// Sets `offered`. False if the pointer is unknown.
bool offer(CUdeviceptr pointer) noexcept;
// True if other processes may access a block.
bool any_exported() noexcept;

// Mark a block as kept, or as no longer kept (reused, or about to be freed). Both update Device::kept but not the
// charge.
void keep(CUdeviceptr pointer, const Allocation &allocation) noexcept;
void use_again(CUdeviceptr pointer, const Allocation &allocation) noexcept;

// Records a block that is reused, or that stays kept after all. False if host memory is exhausted.
bool remember(CUdeviceptr pointer, const Allocation &allocation) noexcept;
// Credits the device after the driver has freed the memory, and returns the bytes. The driver returns some memory only
// at a synchronisation. With NVML such bytes count as overhead until a reconcile (when_measured). Without NVML no
// request may use them until curb has synchronised (at_sync).
enum class Returned { now, when_measured, at_sync };
Bytes credit(CUdeviceptr pointer, const Allocation &allocation, Returned returned = Returned::now) noexcept;

// Credits the memory of a destroyed context.
void drop_context(CUcontext context) noexcept;

}  // namespace curb::shim::allocations
