// Answers about memory, which for a block of curb's are those of cuMemAlloc memory: the size that the program asked
// for, its context, and nothing between the end of that and the end of the granules.
//
// Each function is the driver's of a similar name, of any memory. Thread-safe. Source of the answers: both kinds of
// memory compared on an H200 with driver 580 (tests/contract/blocks).
#pragma once

#include "driver/driver.hpp"

namespace curb::shim::blocks {

CUresult address_range(CUdeviceptr *start, std::size_t *bytes, CUdeviceptr address);
CUresult attribute(void *value, CUpointer_attribute attribute, CUdeviceptr address);
CUresult attributes(unsigned count, CUpointer_attribute *attributes, void **values, CUdeviceptr address);
CUresult set_attribute(const void *value, CUpointer_attribute attribute, CUdeviceptr address);
CUresult access(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr address);

// True if a block has an address of this range. Then calls for virtual memory are refused there, as are calls for host
// memory.
bool any_in(CUdeviceptr address, std::size_t bytes = 1) noexcept;

}  // namespace curb::shim::blocks
