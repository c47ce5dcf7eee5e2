// Which processes work together, where no launcher has put it into their environment.
#pragma once

#include <vector>

#include "driver.hpp"
#include "target.hpp"

namespace curb::cli {

// Returns true if the two processes have a TCP connection to each other, or share memory by a file of /dev/shm: so do
// the ranks of a job, and the workers of a DataLoader. True too if it cannot be seen, because /proc does not show them.
bool in_touch(int one, int other);

// Returns the pid of another process that holds GPU memory and is in touch with this one, if both have the same parent
// and the parent runs the same program: that is torch.multiprocessing, whose ranks show in no environment. The kernels
// of a Jupyter server have the same parent too, but nothing to do with each other. 0 if there is none.
int companion_of(const Target &target, const std::vector<GpuState> &gpus);

}  // namespace curb::cli
