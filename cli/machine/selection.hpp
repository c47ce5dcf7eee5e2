// Selects processes by PIDs or by a description, for release, cap, suspend, resume and ps.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "command/command.hpp"
#include "machine/view.hpp"
#include "policy/values/gpu_key.hpp"
#include "policy/values/result.hpp"

namespace curb::cli {

struct Selection {
    std::vector<int> pids;
    bool all = false;
    // Of each kind that is given, one has to match.
    std::vector<std::string> names, users, gpus, jobs;
    std::vector<int> trees;

    enum class Takes { everything, for_cap, no_all };
    // `for_cap`: --gpu and --job have another meaning there. `no_all`: without a selection the command acts on all.
    void declare(Options &takes, Takes what = Takes::everything);
    void declare_filters(Options &takes, Takes what = Takes::everything);

    [[nodiscard]] bool is_described() const { return all || has_filters(); }
    [[nodiscard]] bool has_filters() const {
        return !names.empty() || !users.empty() || !gpus.empty() || !jobs.empty() || !trees.empty();
    }
};

// Reads the key of a GPU as people type it: a policy's key, or the index that nvidia-smi prints, "1" for nvml:1.
policy::Result<policy::GpuKey, std::string> typed_gpu_key(const std::string &text);

// True if the description matches the process. Precondition: fault_of() has found the GPU keys valid. Pure, except that
// --tree reads /proc.
bool fits(const Selection &selection, const View &view, std::size_t process);
// True if the pattern matches the job "slurm 42", or its part behind the kind: "42".
bool names_job(std::string_view pattern, std::string_view job);
// Returns why the selection is invalid. Empty if it is valid.
std::string fault_of(const Selection &selection);

// Returns the selected processes under curb, each once; each PID as programs_of() has it. `command`: "release", for
// messages.
policy::Result<std::vector<int>, std::string> found(const Selection &selection, const std::string &command);

// Replaces each shell or launcher by the processes under curb that it started, which it prints on stderr. A process
// that can be asked, or that started none, stays. Returns each process once.
std::vector<int> programs_of(const std::vector<int> &pids);

}  // namespace curb::cli
