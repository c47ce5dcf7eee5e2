// Slurm's plugin: `srun|sbatch|salloc --gpu-mem=SIZE --gpu-policy=FILE`, and caps for the tasks of jobs with shards.
//
// srun, sbatch and salloc load it to check the options before a job exists. On the node slurmstepd loads it, and
// task_init changes the environment of each task just before the task's exec, as the user. Rules on the node:
// - init always returns 0: Slurm drains a node whose init fails. task_init may return -1: only the task then fails.
// - No exception leaves a hook.
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <optional>
#include <string>

#include "share.hpp"

// spank.h declares the hooks without C linkage, and SPANK_PLUGIN's constants would have internal linkage in C++.
#pragma GCC visibility push(default)
extern "C" {
#include <slurm/slurm.h>
#include <slurm/spank.h>
extern const char plugin_name[];
extern const char plugin_type[];
extern const unsigned int plugin_version;
extern const unsigned int spank_plugin_version;
SPANK_PLUGIN(curb, 1)
}
#pragma GCC visibility pop

namespace {

using namespace curb;

constexpr int kFailed = -1;

template <class Hook>
int guarded(Hook hook) noexcept {
    try {
        return hook();
    } catch (const std::exception &) {
        slurm_error("curb: out of memory");
        return kFailed;
    }
}

// Returns the configuration. libcurb.so is beside the plugin, unless lib= names another.
policy::Result<slurm::Config, std::string> config_of(int count, char *words[]) {
    Dl_info self{};
    std::string library;
    if (::dladdr(plugin_name, &self) != 0 && self.dli_fname != nullptr) library = self.dli_fname;
    library.erase(library.rfind('/') + 1);
    return slurm::read_config({words, static_cast<std::size_t>(count)}, library + "libcurb.so");
}

// Logs each line as a message of its own: Slurm writes one line for each message.
void complain(std::string_view about, std::string_view text) {
    while (!text.empty()) {
        const std::size_t end = text.find('\n');
        slurm_error("curb: %.*s%.*s", static_cast<int>(about.size()), about.data(),
                    static_cast<int>(std::min(end, text.size())), text.data());
        text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    }
}

// The variables in which Slurm passes options of sbatch and salloc to the job.
constexpr const char *kJobsMemory = "SLURM_SPANK__SLURM_SPANK_OPTION_curb_gpu_mem";
constexpr const char *kJobsPolicy = "SLURM_SPANK__SLURM_SPANK_OPTION_curb_gpu_policy";

// True in an srun that makes its own job. In an allocation its options are the step's.
bool makes_the_job() { return spank_context() == S_CTX_LOCAL && std::getenv("SLURM_JOB_ID") == nullptr; }

// On the node task_init checks the options, because there a failure ends only the task.
int check_memory(int, const char *value, int remote) {
    if (remote != 0) return 0;
    return guarded([&] {
        const auto fault = slurm::fault_of_memory(value == nullptr ? "" : value);
        if (fault) complain("--gpu-mem: ", *fault);
        if (!fault && makes_the_job()) ::setenv(kJobsMemory, value, 1);
        return fault ? kFailed : 0;
    });
}
int check_policy(int, const char *value, int remote) {
    if (remote != 0) return 0;
    return guarded([&] {
        const auto fault = slurm::fault_of_policy(value == nullptr ? "" : value);
        if (fault) complain("--gpu-policy: ", *fault);
        return fault ? kFailed : 0;
    });
}

char memory_name[] = "gpu-mem", memory_shape[] = "SIZE", policy_name[] = "gpu-policy", policy_shape[] = "FILE";
char memory_help[] = "GPU memory that the job may hold of each GPU: 6GiB, 25%. (--mem-per-gpu is memory of the host.)";
char policy_help[] = "curb's policy for the job, by an absolute path: see curb policy init";
spank_option memory_option{memory_name, memory_shape, memory_help, 1, 0, check_memory};
spank_option policy_option{policy_name, policy_shape, policy_help, 1, 1, check_policy};

std::optional<std::string> variable_of(spank_t spank, const char *name) {
    std::string text(4096, '\0');
    for (;;) {
        const spank_err_t got = spank_getenv(spank, name, text.data(), static_cast<int>(text.size()));
        if (got == ESPANK_SUCCESS) return std::string(text.c_str());
        constexpr std::size_t kLargest = std::size_t{1} << 21;  // of the kernel: MAX_ARG_STRLEN is 128 KiB
        if (got != ESPANK_NOSPACE || text.size() > kLargest) return std::nullopt;
        text.resize(text.size() * 8);
    }
}

// Returns the step's value of an option; without one of its own it is the job's.
std::optional<std::string> value_of(spank_t spank, spank_option &option, const char *of_job) {
    char *value = nullptr;
    if (spank_option_getopt(spank, &option, &value) == ESPANK_SUCCESS && value != nullptr) return value;
    // The option is lost in the script of sbatch --export=NONE; this variable is not.
    return variable_of(spank, of_job);
}

// "batch", "0"
std::string step_name(spank_t spank) {
    std::uint32_t step = 0;
    spank_get_item(spank, S_JOB_STEPID, &step);
    switch (step) {
        case SLURM_BATCH_SCRIPT: return "batch";
        case SLURM_INTERACTIVE_STEP: return "interactive";
        default: return std::to_string(step);
    }
}

std::uint32_t job_of(spank_t spank) {
    std::uint32_t job = 0;
    spank_get_item(spank, S_JOB_ID, &job);
    return job;
}
// From slurmstepd's own variables: the step's have it in task_init only, and before that the user's can have another.
std::string node_name() {
    const char *name = std::getenv("SLURMD_NODENAME");
    return name == nullptr ? "" : name;
}

// Returns the shards of the job on this node. A step's variables show the step's own shards alone, so the controller
// must tell. 0 if it does not.
std::uint64_t shards_of_job(std::uint32_t job, const std::string &node) {
    job_info_msg_t *jobs = nullptr;
    if (slurm_load_job(&jobs, job, SHOW_DETAIL) != SLURM_SUCCESS) return 0;
    std::uint64_t out = 0;
    for (std::uint32_t i = 0; i < jobs->record_count; ++i) {
        const auto &one = jobs->job_array[i];  // the answer has all parts of a heterogeneous job
        if (one.job_id != job) continue;
        const auto nodes = slurm_hostlist_create(one.nodes);
        const int at = nodes == nullptr ? -1 : slurm_hostlist_find(nodes, node.c_str());
        if (at >= 0 && static_cast<std::uint32_t>(at) < one.gres_detail_cnt && one.gres_detail_str[at] != nullptr)
            out = slurm::shards_of(one.gres_detail_str[at]);
        slurm_hostlist_destroy(nodes);
    }
    slurm_free_job_info_msg(jobs);
    return out;
}

constexpr const char *kDriver = "/dev/nvidiactl";

// Set once for each step on the node, before its tasks are forked.
std::uint64_t job_shards = 0;

slurm::Task task_of(spank_t spank) {
    slurm::Task out;
    out.job = std::to_string(job_of(spank));
    out.step = step_name(spank);
    out.node = node_name();
    out.job_shards = job_shards;
    out.job_memory = variable_of(spank, kJobsMemory);
    out.memory = value_of(spank, memory_option, kJobsMemory);
    out.policy = value_of(spank, policy_option, kJobsPolicy);
    return out;
}

// Returns why the user cannot read the file. nullopt if they can.
std::optional<std::string> why_unreadable(const std::string &file) {
    return ::access(file.c_str(), R_OK) == 0 ? std::nullopt : std::optional<std::string>(std::strerror(errno));
}

// Returns why the task cannot be held to its job's share.
std::optional<std::string> fault_of(const slurm::Config &config, const slurm::Task &task, bool under_curb) {
    for (const auto &memory : {task.memory, task.job_memory})
        if (memory)
            if (auto fault = slurm::fault_of_memory(*memory)) return "--gpu-mem: " + *fault;
    if (!under_curb) return std::nullopt;
    if (const auto why = why_unreadable(config.library))
        return config.library + ", which holds this job to its GPU memory, cannot be read on node " + task.node + ": " +
               *why +
               ". The task was not started. Administrator: install curb on the node, or correct lib= in plugstack.conf";
    if (task.policy)
        if (const auto why = why_unreadable(*task.policy))
            return "--gpu-policy: " + *task.policy + " cannot be read on node " + task.node + ": " + *why +
                   ". The task was not started. Put the file where the nodes see it";
    return std::nullopt;
}

}  // namespace

extern "C" int slurm_spank_init(spank_t spank, int count, char *words[]) {
    const spank_context_t context = spank_context();
    if (context != S_CTX_LOCAL && context != S_CTX_ALLOCATOR && context != S_CTX_REMOTE) return 0;
    const int status = guarded([&] {
        if (spank_option_register(spank, &memory_option) != ESPANK_SUCCESS ||
            spank_option_register(spank, &policy_option) != ESPANK_SUCCESS)
            complain("", "Slurm does not take the options --gpu-mem and --gpu-policy");
        const auto config = config_of(count, words);
        if (!config) complain("plugstack.conf: ", config.error());
        return config ? 0 : kFailed;
    });
    if (context == S_CTX_REMOTE) return 0;
    // A step would inherit it from a batch script with shards: slurmd does not clear it in steps without shards.
    ::unsetenv("SLURM_SHARDS_ON_NODE");
    // A new job has options of its own.
    if (context == S_CTX_ALLOCATOR || makes_the_job())
        for (const char *name : {kJobsMemory, kJobsPolicy}) ::unsetenv(name);
    return status;
}

extern "C" int slurm_spank_user_init(spank_t spank, int, char *[]) {
    guarded([&] {
        // A step without a GPU can belong to a job with shards. Without NVIDIA's driver the node has none, and the
        // controller is not asked.
        const bool may_have_shards = variable_of(spank, "SLURM_SHARDS_ON_NODE") ||
                                     (!variable_of(spank, "CUDA_VISIBLE_DEVICES") && ::access(kDriver, F_OK) == 0);
        if (may_have_shards) job_shards = shards_of_job(job_of(spank), node_name());
        return 0;
    });
    return 0;  // without the job's count the step's holds
}

extern "C" int slurm_spank_task_init(spank_t spank, int count, char *words[]) {
    return guarded([&] {
        const auto config = config_of(count, words);
        if (!config) {
            complain("plugstack.conf: ", config.error());
            return kFailed;
        }
        const slurm::Task task = task_of(spank);
        const auto variable = [&](const char *name) { return variable_of(spank, name); };
        const bool under_curb = slurm::runs_under_curb(slurm::caps_of(*config, task, variable), task);
        if (const auto fault = fault_of(*config, task, under_curb)) {
            complain("", *fault);
            return kFailed;
        }
        for (const auto &[name, value] : slurm::changes(*config, task, variable)) {
            const spank_err_t done =
                value ? spank_setenv(spank, name.c_str(), value->c_str(), 1) : spank_unsetenv(spank, name.c_str());
            if (done == ESPANK_SUCCESS) continue;
            complain("", "Slurm does not let " + name + " be set: " + spank_strerror(done));
            return kFailed;
        }
        return 0;
    });
}
