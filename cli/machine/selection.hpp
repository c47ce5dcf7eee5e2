// Which processes a command is about: PIDs, or a description of them. release, cap, suspend, resume and ps take it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "command.hpp"
#include "policy/result.hpp"
#include "view.hpp"

namespace curb::cli {

struct Selection {
    std::vector<int> pids;
    bool all = false;
    // Of one kind, one has to match; of several kinds, each.
    std::vector<std::string> names, users, gpus, jobs;
    std::vector<int> trees;

    enum class Takes { everything, for_cap, no_all };
    // `for_cap`: --gpu and --job have another meaning there. `no_all`: without a selection the command is about all.
    void declare(Options &takes, Takes what = Takes::everything);
    void declare_filters(Options &takes, Takes what = Takes::everything);

    [[nodiscard]] bool is_described() const {
        return all || !names.empty() || !users.empty() || !gpus.empty() || !jobs.empty() || !trees.empty();
    }
};

// True if the description fits the process. Precondition: the GPU keys are valid, as found() makes sure. Pure, but for
// the parents that --tree reads from /proc.
bool fits(const Selection &selection, const View &view, std::size_t process);
// True if the pattern names the job: "slurm 42", or what stands behind the kind: "42".
bool names_job(std::string_view pattern, std::string_view job);
// Returns why the selection is wrong. Empty if it is not.
std::string fault_of(const Selection &selection);

// Returns the selected processes under curb, each once. A PID of a process without curb, such as a shell or launcher,
// stands for the processes under curb that it started; complain() names them. It stands for itself if there are none.
// `command`: "release", for messages.
policy::Result<std::vector<int>, std::string> found(const Selection &selection, const std::string &command);

// Returns the process, or those under curb that it stands for.
std::vector<int> programs_of(int pid);

}  // namespace curb::cli
