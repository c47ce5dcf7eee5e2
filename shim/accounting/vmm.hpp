// Records memory of the virtual memory management calls. Physical memory lives until its last reference (create,
// retain, import) and its last mapping are gone. Programs release a handle right after mapping it, so we count both.
//
// Source: cuMemRelease, CUDA Driver API 13.0. Thread-safe. Holds no lock while calling the driver.
#pragma once

#include <bitset>
#include <map>
#include <memory>

#include "device/devices.hpp"

namespace curb::shim::vmm {

struct Memory;  // physical memory; its last holder credits the device

// Records a new handle of `bytes`, charged to `device`. False if host memory is exhausted.
bool created(CUmemGenericAllocationHandle handle, Device &device, Bytes bytes) noexcept;
// Records an imported handle. Adds a reference if it is of this process's own memory. Other memory gets a record
// without a charge, because the process that created it is charged. `device`: the memory's device; null if unknown.
void imported(CUmemGenericAllocationHandle handle, Device *device) noexcept;
// Records that other processes may access the memory of this handle.
void exported(CUmemGenericAllocationHandle handle) noexcept;
// True if other processes may access memory of this one, or it has memory of others.
bool any_shared() noexcept;
// Adds a reference under a handle that the driver returned for the memory mapped at `address`.
void retained(CUmemGenericAllocationHandle handle, CUdeviceptr address) noexcept;
// Records a mapping. False if host memory is exhausted.
bool mapped(CUdeviceptr address, std::size_t bytes, CUmemGenericAllocationHandle handle) noexcept;

using Reference = std::shared_ptr<Memory>;  // destroying the last holder credits the device

// Guards cuMemRelease. Removes a reference before the call, because afterwards the driver may return the handle to
// another thread. Puts it back unless commit() was called.
class Release : NoCopy {
  public:
    explicit Release(CUmemGenericAllocationHandle handle) noexcept;
    ~Release();
    [[nodiscard]] Ledger *ledger() const noexcept;  // null if the memory is not charged
    // Call it when the driver has released the handle.
    void commit() noexcept { reference_.reset(); }

  private:
    CUmemGenericAllocationHandle handle_;
    Reference reference_;
};

struct Mapping {
    Reference memory;
    std::size_t bytes = 0;
};
using Mappings = std::map<CUdeviceptr, Mapping>;  // by first address

// Guards cuMemUnmap, which may unmap many mappings. Removes those that begin in the range before the call, and puts
// them back unless commit() was called. Is an operation of each ledger whose memory is mapped there. Allocates nothing.
class Unmapping : NoCopy {
  public:
    Unmapping(CUdeviceptr address, std::size_t bytes) noexcept;
    ~Unmapping();
    // Call it when the driver has unmapped the range.
    void commit() noexcept { removed_.clear(); }

  private:
    Mappings removed_;
    std::bitset<devices::kMost> devices_;
};

}  // namespace curb::shim::vmm
