// Records memory of the virtual memory management calls. Physical memory lives until its last reference (create,
// retain, import) and its last mapping are gone. Programs release a handle right after mapping it, so we count both.
//
// Source: cuMemRelease, CUDA Driver API 13.0. Thread-safe. Holds no lock while calling the driver.
#pragma once

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

// Remove records. Call these before the driver: afterwards it may return the same handle or address to another thread.
// Destroying the last returned holder credits the device. put_back() restores the records if the driver fails.
using Reference = std::shared_ptr<Memory>;
struct Mapping {
    Reference memory;
    std::size_t bytes = 0;
};
using Mappings = std::map<CUdeviceptr, Mapping>;  // by first address
Reference take_reference(CUmemGenericAllocationHandle handle) noexcept;
void put_back(CUmemGenericAllocationHandle handle, Reference reference) noexcept;
// Removes every mapping that begins in the range. Allocates nothing.
Mappings take_mappings(CUdeviceptr address, std::size_t bytes) noexcept;
void put_back(Mappings mappings) noexcept;

Device *device_of(const std::shared_ptr<Memory> &memory) noexcept;  // null if not charged

}  // namespace curb::shim::vmm
