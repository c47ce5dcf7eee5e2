// Modules, libraries and kernels: handles, the device memory of loaded code, and the memory that a launch adds.
// Kernels do nothing, but for one of curb's.
#pragma once

#include "abi/cuda_abi.h"

namespace curb::sim {

struct Graph;
struct GraphNode;

void unload_modules_of(CUcontext context);
GraphNode &add_kernel_node(Graph &graph, const CUDA_KERNEL_NODE_PARAMS &params);

}  // namespace curb::sim
