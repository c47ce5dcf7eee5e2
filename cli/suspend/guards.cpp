#include "guards.hpp"

#include <algorithm>

#include "driver.hpp"
#include "policy/growth.hpp"

namespace curb::cli {
namespace {

using policy::Bytes;
using policy::format_human;

std::string gpu_name(const GpuState &gpu) { return "GPU " + std::to_string(gpu.index) + " (" + gpu.uuid + ")"; }

std::optional<Refusal> not_ours(const std::string &what, const Target &target, unsigned user) {
    const std::string pid = std::to_string(target.process.pid);
    if (target.process.start == 0)
        return Refusal{what, "there is no such process", "curb needs the pid as ps shows it here"};
    if (target.thread_of != 0)
        return Refusal{what, "that is a thread of process " + std::to_string(target.thread_of),
                       "name the process: " + std::to_string(target.thread_of)};
    if (user != 0 && user != target.process.uid)
        return Refusal{what, "it belongs to user " + std::to_string(target.process.uid),
                       "only that user and root can do this"};
    if (!target.environment)
        return Refusal{what, "its environment cannot be read, so it cannot be seen what it belongs to",
                       user == 0
                           ? "root may not look into it from here: try on the machine itself, outside of containers"
                           : "try as root (sudo curb ...)"};
    return std::nullopt;
}

// Refuses if the driver cannot suspend and resume.
std::optional<Refusal> cannot(const std::string &what, const DriverFacts &driver) {
    if (!driver.fault.empty()) {
        const std::size_t remedy = driver.fault.find("; ");
        if (remedy == std::string::npos) return Refusal{what, driver.fault, "see whether nvidia-smi works here"};
        return Refusal{what, driver.fault.substr(0, remedy), driver.fault.substr(remedy + 2)};
    }
    if (driver.cuda < kFirstWithCheckpoint || !driver.has_checkpoint)
        return Refusal{what,
                       "driver " + (driver.version.empty() ? "of an unknown version" : driver.version) +
                           " cannot move processes out of their GPUs",
                       "that takes 570 or newer; curb release gives cached memory back with any"};
    if (!driver.state)
        return Refusal{what, "the driver does not know it as a process that uses CUDA (" + driver.state_error + ")",
                       "nvidia-smi lists those that do; the pid must be the one of this machine or container"};
    if (*driver.state == CU_PROCESS_STATE_FAILED)
        return Refusal{what, "the driver has given it up: an earlier suspend or resume failed for good",
                       "all that is left is to end it (kill -9)"};
    return std::nullopt;
}

std::optional<Refusal> wrong_state(const std::string &what, CUprocessState state, const std::string &pid) {
    switch (state) {
        case CU_PROCESS_STATE_CHECKPOINTED:
            return Refusal{what, "it is suspended already", "curb resume " + pid + " brings it back"};
        case CU_PROCESS_STATE_LOCKED:
            return Refusal{what, "it is locked: a suspend or resume was cut short, or another tool is at work on it",
                           "curb resume " + pid + " unlocks it, so that it runs again"};
        default: return std::nullopt;
    }
}

std::optional<Refusal> not_alone(const std::string &what, const SuspendFacts &facts) {
    const auto ranks = ranks_of(*facts.target.environment);
    const std::string remedy = "suspend none of such a job, or end all of it; curb release gives back what each caches";
    if (ranks && (facts.target.has_nccl || !facts.force))
        return Refusal{what,
                       "it is one of several processes that work together (" + ranks->variable + "=" + ranks->count +
                           "), and the others would wait for it in vain",
                       facts.target.has_nccl ? remedy + " (NCCL is loaded, so --force does not help)"
                                             : remedy + "; --force if they do not depend on each other"};
    if (facts.companion != 0 && !facts.force)
        return Refusal{what,
                       "the program that started it also started " + std::to_string(facts.companion) +
                           ", which uses a GPU: they may work together, and one would wait for the other in vain",
                       "--force if they do not depend on each other"};
    return std::nullopt;
}

std::optional<Refusal> shared_in_hardware(const std::string &what, const SuspendFacts &facts,
                                          const std::vector<const GpuState *> &gpus) {
    const int pid = facts.target.process.pid;
    const auto divided = std::find_if(gpus.begin(), gpus.end(), [](const GpuState *gpu) { return gpu->mig; });
    const auto visible = facts.target.environment->find("CUDA_VISIBLE_DEVICES");
    if (divided != gpus.end() ||
        (visible != facts.target.environment->end() && visible->second.find("MIG-") != std::string::npos))
        return Refusal{what,
                       (divided != gpus.end() ? gpu_name(**divided) : "its GPU") +
                           " is divided (MIG), and the driver cannot move a process out of a part",
                       "curb release gives back what it caches"};
    for (const GpuState *gpu : gpus)
        if (gpu->is_mps_client(pid))
            return Refusal{
                what,
                "it shares " + gpu_name(*gpu) + " through MPS, and the driver cannot move a client of MPS out of it",
                "curb release gives back what it caches"};
    return std::nullopt;
}

std::optional<Refusal> too_large_for_host(const std::string &what, const HostRoom &host, Bytes held) {
    // The process may go on taking memory while it is moved, and so may others.
    const Bytes margin = std::max(held / 16, 256 * policy::MiB);
    if (held + margin <= host.available) return std::nullopt;
    return Refusal{what,
                   format_human(held) + " would have to go to host memory, with " + format_human(margin) +
                       " to spare, and " + host.limit + " has room for " + format_human(host.available),
                   "make room there first"};
}

std::optional<Refusal> no_room(const std::string &what, const ResumeFacts &facts, const Need &need) {
    const std::vector<GpuState> &gpus = **facts.gpus;
    const auto gpu = std::find_if(gpus.begin(), gpus.end(), [&](const GpuState &one) { return one.uuid == need.uuid; });
    if (gpu == gpus.end())
        return Refusal{what, need.uuid + ", which it was on, is not there any more", "bring that GPU back first"};
    if (gpu->free >= need.bytes) return std::nullopt;
    std::string users;
    for (const GpuUser &user : gpu->users) {
        if (user.pid == facts.target.process.pid) continue;
        users += (users.empty() ? "" : ", ") + user.text;
        if (user.held) users += " " + format_human(*user.held);
    }
    return Refusal{what,
                   "it needs " + format_human(need.bytes) + " of " + gpu_name(*gpu) + ", and only " +
                       format_human(gpu->free) + " are free: " + format_human(need.bytes - gpu->free) +
                       " are missing, and the driver would wedge it for good" +
                       (users.empty() ? "" : " (there: " + users + ")"),
                   "make room first (curb release or curb suspend others), or wait for it with --wait 10m"};
}

}  // namespace

std::optional<Refusal> why_not_suspend(const SuspendFacts &facts) {
    const std::string pid = std::to_string(facts.target.process.pid), what = "cannot suspend " + facts.target.text();
    if (auto refusal = not_ours(what, facts.target, facts.user)) return refusal;
    if (facts.driver) {
        if (auto refusal = cannot(what, *facts.driver)) return refusal;
        if (auto refusal = wrong_state(what, *facts.driver->state, pid)) return refusal;
    }
    if (auto refusal = not_alone(what, facts)) return refusal;
    if (facts.gpus) {
        if (!*facts.gpus)
            return Refusal{what, "NVML does not tell who holds what: " + facts.gpus->error(),
                           "see whether nvidia-smi works here"};
        const auto gpus = gpus_of(**facts.gpus, facts.target.process.pid);
        if (gpus.empty())
            return Refusal{what, "NVML lists no GPU memory of it",
                           "nvidia-smi lists those that have some; the pid must be the one of this machine"};
        if (auto refusal = shared_in_hardware(what, facts, gpus)) return refusal;
        for (const GpuState *gpu : gpus)
            if (!gpu->user(facts.target.process.pid)->held)
                return Refusal{what, "NVML does not tell how much it holds of " + gpu_name(*gpu),
                               "try as root (sudo curb ...)"};
        if (facts.host)
            if (auto refusal = too_large_for_host(what, *facts.host, held_by(**facts.gpus, facts.target.process.pid)))
                return refusal;
    }
    if (facts.books && facts.books->managed && *facts.books->managed != 0)
        return Refusal{
            what,
            "it has " + format_human(*facts.books->managed) + " of managed memory, which the driver cannot move out",
            "curb release gives back what it caches"};
    // JAX 0.11 in the middle of training, on an H200: a thread of XLA's died of SIGSEGV in 2 of 14 suspends.
    if (facts.target.has_xla && !facts.force)
        return Refusal{
            what,
            "it runs on XLA (JAX, TensorFlow), and a thread of XLA's may crash while the process is suspended: "
            "it was seen in 2 of 14 suspends in the middle of training",
            "curb release gives back what it caches without that risk; --force if a crash does no harm, after a "
            "checkpoint of its own, say"};
    if (facts.books && !facts.books->managed && !facts.force)
        return Refusal{what,
                       "it cannot be known whether it has managed memory, which the driver cannot move out (" +
                           facts.books->unknown + ")",
                       "--force if it has none; the driver's refusal leaves it running"};
    return std::nullopt;
}

namespace {

std::optional<Refusal> why_not_resume_yet(const ResumeFacts &facts, bool room) {
    const std::string pid = std::to_string(facts.target.process.pid), what = "cannot resume " + facts.target.text();
    if (auto refusal = not_ours(what, facts.target, facts.user)) return refusal;
    if (facts.driver) {
        if (auto refusal = cannot(what, *facts.driver)) return refusal;
        if (*facts.driver->state == CU_PROCESS_STATE_RUNNING)
            return Refusal{what, "it is not suspended: it runs", "there is nothing to do"};
        if (*facts.driver->state == CU_PROCESS_STATE_LOCKED) return std::nullopt;
    }
    if (facts.needs && facts.needs->empty())
        return Refusal{what,
                       "there is no record of what has to come back, and with too little room the driver would wedge "
                       "it for good",
                       "say how much it held of each GPU with --bytes SIZE"};
    if (facts.gpus && !*facts.gpus)
        return Refusal{what, "NVML does not tell what is free: " + facts.gpus->error(),
                       "see whether nvidia-smi works here"};
    if (room && facts.gpus && facts.needs)
        for (const Need &need : *facts.needs)
            if (auto refusal = no_room(what, facts, need)) return refusal;
    return std::nullopt;
}

}  // namespace

std::optional<Refusal> why_not_resume(const ResumeFacts &facts) { return why_not_resume_yet(facts, true); }

bool only_room_is_lacking(const ResumeFacts &facts) {
    return why_not_resume(facts).has_value() && !why_not_resume_yet(facts, false).has_value();
}

Bytes room_for(Bytes held, Bytes free, Bytes left) {
    // At most the memory that was free then: a process that filled a device must be able to come back to it.
    return policy::added(held - std::min(held, left), std::min(free, 64 * policy::MiB));
}

const char *state_name(CUprocessState state) {
    switch (state) {
        case CU_PROCESS_STATE_RUNNING: return "running";
        case CU_PROCESS_STATE_LOCKED: return "locked";
        case CU_PROCESS_STATE_CHECKPOINTED: return "checkpointed";
        case CU_PROCESS_STATE_FAILED: return "failed";
    }
    return "unknown";
}

std::vector<const GpuState *> gpus_of(const std::vector<GpuState> &gpus, int pid) {
    std::vector<const GpuState *> out;
    for (const GpuState &gpu : gpus)
        if (gpu.user(pid)) out.push_back(&gpu);
    return out;
}

Bytes held_by(const std::vector<GpuState> &gpus, int pid) {
    Bytes sum = 0;
    for (const GpuState *gpu : gpus_of(gpus, pid)) sum += gpu->user(pid)->held.value_or(0);
    return sum;
}

}  // namespace curb::cli
