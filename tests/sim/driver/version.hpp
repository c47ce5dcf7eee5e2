// The simulated driver's version of CUDA. Each variant links its own definition.
#pragma once

namespace curb::sim {

extern const int kCudaVersion;  // as cuDriverGetVersion returns it

}  // namespace curb::sim
