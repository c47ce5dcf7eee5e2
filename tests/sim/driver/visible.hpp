// The GPUs that this process sees, and their ordinals: CUDA_VISIBLE_DEVICES.
#pragma once

#include <vector>

namespace curb::sim {

// Returns the machine's numbers of the visible GPUs, in the order of CUDA's ordinals. The variable lists them by
// number, UUID or unique prefix of a UUID. The first entry that names none, or one a second time, ends the list (CUDA
// Programming Guide, environment variables). NVML ignores it.
std::vector<int> visible_gpus(int count);

}  // namespace curb::sim
