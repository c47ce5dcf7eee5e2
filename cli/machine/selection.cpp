#include "machine/selection.hpp"

#include <algorithm>
#include <string_view>

#include "control/client.hpp"
#include "machine/sim.hpp"
#include "machine/target.hpp"
#include "policy/rules.hpp"
#include "policy/values/gpu_key.hpp"
#include "policy/values/words.hpp"
#include "terminal/messages.hpp"
#include "terminal/terminal.hpp"

namespace curb::cli {
namespace {

using namespace std::chrono_literals;

constexpr auto kPatience = 300ms;  // a process that has not answered by then is matched by /proc alone

using Patterns = std::vector<std::string>;

bool is_any(const Patterns &patterns, std::string_view text) {
    return std::any_of(patterns.begin(), patterns.end(),
                       [=](const std::string &one) { return policy::glob(one, text); });
}

// Matches the kernel's name, the whole command line, and the file names of the program and of its script.
bool is_named(const Patterns &patterns, const ViewProcess &process) {
    const std::string_view command = process.command;
    const std::size_t first = std::min(command.find(' '), command.size());
    const std::string_view rest = command.substr(std::min(first + 1, command.size()));
    return is_any(patterns, process.name) || is_any(patterns, command) ||
           is_any(patterns, policy::file_name(command.substr(0, first))) ||
           is_any(patterns, policy::file_name(rest.substr(0, rest.find(' '))));
}

// Returns the GPU as policy keys name it: "cuda:0" is the ordinal in the process.
policy::GpuIdentity identity(const View &view, const ViewGpu &gpu, const ViewUse &use) {
    policy::GpuIdentity out;
    const control::GpuStatus *books = books_of(view, use);
    const ViewGpu *whole = whole_of(view, gpu);
    out.ordinal = books ? books->ordinal : -1;
    if (whole) out.nvml_index = whole->index;
    const bool instance = gpu.uuid.starts_with("MIG-");
    out.gpu_uuid = instance ? gpu.parent : gpu.uuid;
    if (instance) out.mig_uuid = gpu.uuid;
    return out;
}

bool is_on(const Patterns &keys, const View &view, std::size_t process) {
    return std::any_of(view.gpus.begin(), view.gpus.end(), [&](const ViewGpu &gpu) {
        return std::any_of(gpu.uses.begin(), gpu.uses.end(), [&](const ViewUse &use) {
            return use.process == process && std::any_of(keys.begin(), keys.end(), [&](const std::string &key) {
                       return policy::names(*typed_gpu_key(key), identity(view, gpu, use));
                   });
        });
    });
}

// Returns the programs that one process stands for.
std::vector<int> programs_of(int pid) {
    if (pid == 1) return {pid};  // init started everything: that selection is --all
    const std::vector<int> can_be_asked = control::processes();
    const std::vector<int> below = std::binary_search(can_be_asked.begin(), can_be_asked.end(), pid)
                                       ? std::vector<int>()
                                       : started_by(pid, can_be_asked);
    if (below.empty()) return {pid};
    say::hint("process " + label_of(pid, name_of(pid)) +
              " is not under curb, or has not used CUDA; asking what it started: " +
              policy::joined(below, ", ", [](int one) { return std::to_string(one); }));
    return below;
}

}  // namespace

void Selection::declare(Options &takes, Takes what) {
    takes.pids(pids, "Process; a shell or launcher stands for the programs that it started");
    declare_filters(takes, what);
}

void Selection::declare_filters(Options &takes, Takes what) {
    if (what != Takes::no_all) takes.flag("-a,--all", all, "All processes that can be asked");
    takes.options("--name", names, "GLOB", "Processes whose name, script or command line matches: python3, '*train*'");
    takes.options("--user", users, "USER", "Processes of this user");
    if (what != Takes::for_cap) {
        takes.options("--gpu", gpus, "KEY", "Processes on this GPU: 1 (nvidia-smi's index), GPU-8f3a, cuda:0");
        takes.options("--job", jobs, "JOB", "Processes of this job, as curb ps names it: 'slurm 42', 42, '4711-*'");
    }
    takes.pid_options("--tree", trees, "Processes that this one started, and itself");
}

policy::Result<policy::GpuKey, std::string> typed_gpu_key(const std::string &text) {
    return policy::parse_gpu_key(policy::whole_number(text) ? "nvml:" + text : text);
}

bool fits(const Selection &selection, const View &view, std::size_t process) {
    const ViewProcess &one = view.processes[process];
    const auto is_below = [&](int pid) { return pid == one.pid || !started_by(pid, {one.pid}).empty(); };
    return (selection.names.empty() || is_named(selection.names, one)) &&
           (selection.users.empty() || is_any(selection.users, one.user)) &&
           (selection.gpus.empty() || is_on(selection.gpus, view, process)) &&
           (selection.jobs.empty() ||
            (one.status && std::any_of(selection.jobs.begin(), selection.jobs.end(),
                                       [&](const auto &job) { return names_job(job, one.status->job); }))) &&
           (selection.trees.empty() || std::any_of(selection.trees.begin(), selection.trees.end(), is_below));
}

bool names_job(std::string_view pattern, std::string_view job) {
    return !job.empty() && (policy::glob(pattern, job) || policy::glob(pattern, job.substr(job.find(' ') + 1)));
}

std::string fault_of(const Selection &selection) {
    if (!selection.pids.empty() && selection.is_described())
        return "write either the processes or a description of them (--all, --name, --user, …), not both";
    for (const std::string &key : selection.gpus)
        if (const auto parsed = typed_gpu_key(key); !parsed) return "--gpu: " + parsed.error();
    return {};
}

std::vector<int> programs_of(const std::vector<int> &pids) {
    std::vector<int> out;
    for (const int pid : pids)
        for (const int program : programs_of(pid))
            if (std::find(out.begin(), out.end(), program) == out.end()) out.push_back(program);
    return out;
}

policy::Result<std::vector<int>, std::string> found(const Selection &selection, const std::string &command) {
    if (std::string fault = fault_of(selection); !fault.empty()) return fault;
    if (selection.pids.empty() && !selection.is_described())
        return "which process? curb " + command +
               " PID, or --all, --name, --user, --gpu, --job, --tree; curb ps lists them";
    if (!selection.is_described()) return programs_of(selection.pids);
    std::vector<int> out;
    if (!selection.has_filters()) {  // --all alone
        out = control::processes();
        std::erase_if(out, [](int pid) { return !is_on_machine(pid); });
        return out;
    }
    const View view = poll_all(kPatience);
    for (std::size_t i = 0; i < view.processes.size(); ++i)
        if (view.processes[i].under_curb && fits(selection, view, i)) out.push_back(view.processes[i].pid);
    if (out.empty()) return std::string("no process under curb matches that you may ask; curb ps lists all");
    return out;
}

}  // namespace curb::cli
