// Work that takes time: kernels, as their image asks (sim.h), and functions of the program that the driver calls on a
// thread of its own. A kernel has blocks to itself: if it runs on a block of another running kernel, that is an
// overlap, which the machine counts.
//
// Rule: waiting releases the model's lock, so find objects again afterwards.
#pragma once

#include <chrono>
#include <functional>
#include <vector>

#include "abi/cuda_abi.h"
#include "streams.hpp"

namespace curb::sim {

// Starts a kernel on the stream, after the work before it. The kernel has the blocks around `addresses`.
void begin_kernel(const Stream &stream, std::chrono::microseconds duration, const std::vector<CUdeviceptr> &addresses);

// Starts a copy between pinned memory and the device, after the work before it. Takes time if CURB_SIM_LATENCY says so.
void begin_copy(const Stream &stream, bool to_host, uint64_t bytes);

// Has the driver's thread call the function, after the work before it in the stream. The call returns at once; kernels
// that are submitted later wait for the function, and so does a lock of the process.
void begin_host_call(const Stream &stream, std::function<void()> function);

// Returns whether any of this work is still running.
bool runs(const Progress &progress);

void wait_for_work(const Progress &progress);
void wait_for_work_of(CUcontext context);
void wait_for_all_work(int device);

}  // namespace curb::sim
