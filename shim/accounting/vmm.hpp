// Memory of the virtual memory management calls: physical memory lives as long as a reference (create, retain, import)
// or a mapping does, whichever ends last. Programs release a handle right after mapping it, so both are counted.
//
// Source of the rule: cuMemRelease, CUDA Driver API 13.0. Thread-safe; no lock is held while the driver is called.
#pragma once

#include <map>
#include <memory>

#include "devices.hpp"

namespace curb::shim::vmm {

struct Memory;  // physical memory: its charge goes back with the last holder

// A new handle of `bytes`, charged to `device`. False: no host memory for the record.
bool created(CUmemGenericAllocationHandle handle, Device &device, Bytes bytes) noexcept;
// A handle that the driver returned for memory made elsewhere, which is charged there; or for memory of our own, to
// which it is one more reference.
void imported(CUmemGenericAllocationHandle handle) noexcept;
// One more reference under a handle that the driver returned for the memory mapped at `address`.
void retained(CUmemGenericAllocationHandle handle, CUdeviceptr address) noexcept;
// False: no host memory for the record.
bool mapped(CUdeviceptr address, std::size_t bytes, CUmemGenericAllocationHandle handle) noexcept;

// Taken out of the books before the driver is called, since afterwards another thread may be given the same handle or
// address. Destroying what was taken credits the device, if it was the last; put_back() undoes it when the driver
// refused.
using Reference = std::shared_ptr<Memory>;
struct Mapping {
    Reference memory;
    std::size_t bytes = 0;
};
using Mappings = std::map<CUdeviceptr, Mapping>;  // by first address
Reference take_reference(CUmemGenericAllocationHandle handle) noexcept;
void put_back(CUmemGenericAllocationHandle handle, Reference reference) noexcept;
// Every mapping that begins in the range. Needs no host memory.
Mappings take_mappings(CUdeviceptr address, std::size_t bytes) noexcept;
void put_back(Mappings mappings) noexcept;

Device *device_of(const std::shared_ptr<Memory> &memory) noexcept;  // null: not charged

}  // namespace curb::shim::vmm
