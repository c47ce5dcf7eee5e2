// Turns the shards and options of a Slurm job into the environment that caps its tasks. Pure, except for reading a
// policy file. Functions may throw std::bad_alloc.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "policy/values/result.hpp"
#include "policy/values/size.hpp"

namespace curb::slurm {

// The arguments of the plugin in plugstack.conf.
struct Config {
    std::string library;  // lib=FILE
    // At most one of these two is set. Slurm does not show a job how many shards a GPU has.
    std::uint64_t shards_per_gpu = 0;            // 0: not set
    std::optional<policy::Size> shard_size;      // bytes
    std::optional<policy::Size> without_shards;  // default=SIZE
};
// Returns the configuration. The error names the first wrong word and a correct one. `library`: used without lib=.
policy::Result<Config, std::string> read_config(std::span<char *const> words, std::string library);

// Return why the value of --gpu-mem or --gpu-policy is wrong, and a correct one. nullopt if it is right. The second one
// reads the policy file.
std::optional<std::string> fault_of_memory(std::string_view size);
std::optional<std::string> fault_of_policy(const std::string &file);

// One task, as Slurm describes it.
struct Task {
    std::string job;                        // "42"
    std::string step;                       // "0", "batch"
    std::string node;                       // "n1"
    std::uint64_t job_shards = 0;           // of the job on this node; 0: unknown, so the step's count
    std::optional<std::string> job_memory;  // --gpu-mem of the job
    std::optional<std::string> memory;      // --gpu-mem of the step, or the job's
    std::optional<std::string> policy;      // --gpu-policy
};
// Returns the shards in Slurm's list of a job's gres on a node, "gpu:fake:1(IDX:0),shard:2(IDX:0)". 0 if it has none.
std::uint64_t shards_of(std::string_view gres);

// Returns the value of a variable of the task. nullopt if it is unset.
using Variables = std::function<std::optional<std::string>(const char *)>;
// The variables to change: nullopt unsets one.
using Changes = std::map<std::string, std::optional<std::string>>;

// The caps of a task, as in "50%,6GiB". Empty: none.
struct Caps {
    std::string job;   // all its processes on the node share it
    std::string step;  // of a step that has less than its job: each process, or all together if the job has no cap
};
Caps caps_of(const Config &config, const Task &task, const Variables &variable);
// True if the task runs under curb: it has a cap or a policy.
inline bool runs_under_curb(const Caps &caps, const Task &task) {
    return !caps.job.empty() || !caps.step.empty() || task.policy;
}
// Returns the changes to the task's environment. Without cap and policy, removes the variables of an outer job.
Changes changes(const Config &config, const Task &task, const Variables &variable);

}  // namespace curb::slurm
