// Says if a process is one of several ranks that talk to each other. Pure: callers pass the environment.
#pragma once

#include <algorithm>
#include <array>
#include <cstdlib>

namespace curb::policy {

// What launchers set to the number of ranks: torchrun and its like; Open MPI; MPICH, Intel MPI and srun's PMI; MVAPICH;
// Horovod; JAX; a step of Slurm.
inline constexpr std::array kRankCounts{"WORLD_SIZE",          "OMPI_COMM_WORLD_SIZE", "PMI_SIZE",
                                        "MV2_COMM_WORLD_SIZE", "HOROVOD_SIZE",         "JAX_NUM_PROCESSES",
                                        "SLURM_STEP_NUM_TASKS"};

// `variable(name)` returns a variable's value, or null.
template <class Variable>
[[nodiscard]] bool is_one_of_ranks(Variable variable) {
    return std::any_of(kRankCounts.begin(), kRankCounts.end(), [&](const char *name) {
        const char *count = variable(name);
        return count && std::strtol(count, nullptr, 10) > 1;
    });
}

}  // namespace curb::policy
