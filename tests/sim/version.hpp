// Which CUDA the simulated driver is of: each variant is linked with a definition of its own.
#pragma once

namespace curb::sim {

extern const int kCudaVersion;  // as cuDriverGetVersion says it

}  // namespace curb::sim
