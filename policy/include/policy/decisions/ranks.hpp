// Says if a process is one of several ranks that talk to each other. Pure: callers pass the environment.
#pragma once

#include <algorithm>
#include <array>
#include <string_view>

#include "policy/values/words.hpp"

namespace curb::policy {

// What a launcher sets: a variable with the number of ranks, and one of these with the rank.
struct Launcher {
    const char *count;
    std::array<const char *, 2> ranks;
};
inline constexpr std::array kLaunchers{Launcher{"WORLD_SIZE", {"RANK", "LOCAL_RANK"}},
                                       Launcher{"OMPI_COMM_WORLD_SIZE", {"OMPI_COMM_WORLD_RANK"}},
                                       Launcher{"MV2_COMM_WORLD_SIZE", {"MV2_COMM_WORLD_RANK"}},
                                       Launcher{"PMI_SIZE", {"PMI_RANK"}},
                                       Launcher{"JAX_NUM_PROCESSES", {"JAX_PROCESS_ID"}},
                                       Launcher{"SLURM_STEP_NUM_TASKS", {"SLURM_PROCID"}},
                                       Launcher{"SLURM_NTASKS", {"SLURM_PROCID"}}};

// Returns the variable that has the number of ranks; null if the process is alone. `variable(name)` returns a
// variable's value, or null.
template <class Variable>
[[nodiscard]] const char *count_of_ranks(Variable variable) {
    for (const auto &[count, ranks] : kLaunchers) {
        const char *number = variable(count);
        if (!number || whole_number(number).value_or(1) < 2) continue;
        // Slurm's count for the step overrides that for the job: a batch script, one process, has the latter too.
        if (std::string_view(count) == "SLURM_NTASKS" && variable("SLURM_STEP_NUM_TASKS")) continue;
        if (std::any_of(ranks.begin(), ranks.end(), [&](const char *rank) { return rank && variable(rank); }))
            return count;
    }
    return nullptr;
}

}  // namespace curb::policy
