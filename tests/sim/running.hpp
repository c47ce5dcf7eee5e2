// Kernels that take time, which their image asks for (sim.h): until when each runs, on which stream, and which blocks
// it has for itself meanwhile. What runs on a block that another kernel still has is an overlap, which the machine
// counts.
//
// Rule: waiting releases the model's lock, so find objects again afterwards.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "cuda_abi.h"
#include "streams.hpp"

namespace curb::sim {

// A kernel begins on the stream, after what is before it there, and has the blocks around these addresses.
void begin_kernel(const Stream &stream, std::chrono::microseconds duration, const std::vector<CUdeviceptr> &addresses);

// Whether something of that is still running.
bool runs(const Progress &progress);

void wait_for_work(const Progress &progress);
void wait_for_work_of(CUcontext context);
void wait_for_all_work(int device);

}  // namespace curb::sim
