// Which GPUs of the machine this process sees, and under which ordinals: CUDA_VISIBLE_DEVICES.
#pragma once

#include <vector>

namespace curb::sim {

// The machine's numbers of the GPUs, in the order of CUDA's ordinals. The list of the environment names them by number,
// by UUID or by its unique beginning; the first entry that names none, or one a second time, ends it (CUDA Programming
// Guide, environment variables). NVML does not heed it.
std::vector<int> visible_gpus(int count);

}  // namespace curb::sim
