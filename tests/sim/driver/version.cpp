#include "version.hpp"

const int curb::sim::kCudaVersion = CURB_SIM_CUDA;
