// Kernels that take time, as their image asks (sim.h): their end, their stream, and the blocks that they have to
// themselves. A kernel that runs on a block of another running kernel is an overlap, which the machine counts.
//
// Rule: waiting releases the model's lock, so find objects again afterwards.
#pragma once

#include <chrono>
#include <vector>

#include "cuda_abi.h"
#include "streams.hpp"

namespace curb::sim {

// Starts a kernel on the stream, after the work before it. The kernel has the blocks around `addresses`.
void begin_kernel(const Stream &stream, std::chrono::microseconds duration, const std::vector<CUdeviceptr> &addresses);

// Returns whether any of this work is still running.
bool runs(const Progress &progress);

void wait_for_work(const Progress &progress);
void wait_for_work_of(CUcontext context);
void wait_for_all_work(int device);

}  // namespace curb::sim
