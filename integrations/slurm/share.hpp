// What a task of a Slurm job gets: from the shards and options of its job, the environment that holds it to them. Pure,
// apart from reading a policy file. Functions may throw std::bad_alloc.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "policy/result.hpp"
#include "policy/size.hpp"

namespace curb::slurm {

// The words behind the plugin's path in plugstack.conf.
struct Config {
    std::string library;  // lib=FILE
    // At most one of these two is set. Slurm tells no job how many shards a GPU has.
    std::uint64_t shards_per_gpu = 0;            // 0: not set
    std::optional<policy::Size> shard_size;      // bytes
    std::optional<policy::Size> without_shards;  // default=SIZE
};
// Returns the configuration, or the first word that is wrong and a correct one. `library`: where there is no lib=.
policy::Result<Config, std::string> read_config(std::span<char *const> words, std::string library);

// Return why the value of --gpu-mem or --gpu-policy is wrong, and a correct one. nullopt if it is right. The policy
// file is read.
std::optional<std::string> fault_of_memory(std::string_view size);
std::optional<std::string> fault_of_policy(const std::string &file);

// One task, as Slurm describes it.
struct Task {
    std::string job;                    // "42"
    std::string step;                   // "0", "batch"
    std::string node;                   // "n1"
    std::optional<std::string> memory;  // --gpu-mem
    std::optional<std::string> policy;  // --gpu-policy
};

// Returns the value of a variable of the task. nullopt if it is unset.
using Variables = std::function<std::optional<std::string>(const char *)>;
// The variables to change: nullopt unsets one.
using Changes = std::map<std::string, std::optional<std::string>>;

// Returns the caps of the task as CURB_JOB_CAP has them, "50%,6GiB". Empty: it has none.
std::string caps_of(const Config &config, const Task &task, const Variables &variable);
// Returns what has to change in the task's environment. Without cap and policy, what an outer job has left is removed.
Changes changes(const Config &config, const Task &task, const Variables &variable);

}  // namespace curb::slurm
