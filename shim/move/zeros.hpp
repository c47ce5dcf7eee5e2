// Finds pages of zeros in GPU memory by a kernel. They need not be copied (2,700 GiB/s on an H200).
#pragma once

#include <span>
#include <vector>

#include "abi/cuda_abi.h"
#include "policy/values/size.hpp"

namespace curb::shim::move {

// Memory that a context can read.
struct Range {
    CUdeviceptr address = 0;
    policy::Bytes bytes = 0;
};
// Returns for each range whether each of its pages of policy::kZeroPage is zero. A part of a page counts as not zero.
// All pages count as not zero if the driver cannot run the kernel. Calls the driver behind the gate. May throw
// std::bad_alloc.
std::vector<std::vector<bool>> zero_pages(CUcontext context, std::span<const Range> ranges);

}  // namespace curb::shim::move
