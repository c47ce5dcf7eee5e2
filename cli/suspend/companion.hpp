// Finds processes that work together although no launcher has set variables that say so.
#pragma once

#include <vector>

#include "machine/driver.hpp"
#include "machine/target.hpp"

namespace curb::cli {

// True if the two processes have a TCP connection to each other, or share memory through /dev/shm or a memfd, as the
// ranks of a job and the workers of a DataLoader do. Also true if /proc does not show their files.
bool in_touch(int one, int other);

// Returns the pid of another process that holds GPU memory, has the same parent and is in touch with this one, if the
// parent runs the same program. torch.multiprocessing starts ranks so, without variables. (The kernels of a Jupyter
// server have the same parent too, but are not in touch.) Returns 0 if there is none.
int companion_of(const Target &target, const std::vector<GpuState> &gpus);

}  // namespace curb::cli
