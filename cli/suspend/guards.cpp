#include "suspend/guards.hpp"

#include <algorithm>

#include "policy/decisions/growth.hpp"
#include "policy/decisions/move.hpp"
#include "terminal/format.hpp"

namespace curb::cli {
namespace {

using policy::Bytes;
using policy::format_human;

// Collects at most one refusal.
class Guard {
  public:
    Guard(const char *what, const Target &target) : what_(fmt::format("cannot {} {}", what, target.text())) {}

    // Refuses if `when` is true, and returns `when`. So a chain of || refuses for the first reason that applies.
    bool refuse(bool when, std::string why, std::string remedy) {
        if (when) refusal_ = {what_, std::move(why), std::move(remedy)};
        return when;
    }
    std::optional<Refusal> take() && { return std::move(refusal_); }

  private:
    std::string what_;
    std::optional<Refusal> refusal_;
};

constexpr const char *kReleaseInstead = "curb release gives back what it caches";
constexpr const char *kSeeSmi = "see whether nvidia-smi works here";

std::string gpu_name(const GpuState &gpu) { return fmt::format("GPU {} ({})", gpu.index, gpu.uuid); }

bool not_ours(Guard &guard, const Facts &facts) {
    const Target &target = facts.target;
    const unsigned user = facts.user;
    return guard.refuse(target.process.start == 0, "there is no such process",
                        "curb needs the pid as ps shows it here") ||
           guard.refuse(target.thread_of != 0, fmt::format("that is a thread of process {}", target.thread_of),
                        fmt::format("name the process: {}", target.thread_of)) ||
           guard.refuse(user != 0 && user != target.process.uid,
                        fmt::format("it belongs to user {}", target.process.uid),
                        "only that user and root can do this");
}

// Only for a suspend: a resume must succeed even if the first thread has ended since, and /proc shows no environment.
bool is_unreadable(Guard &guard, const Facts &facts) {
    return guard.refuse(!facts.target.environment,
                        "its environment cannot be read, so it cannot be seen what it belongs to",
                        facts.user == 0 ? "root may not look into it from here: try on the machine itself, outside of "
                                          "containers"
                                        : "try as root (sudo curb ...)");
}

// Refuses if the driver cannot suspend and resume.
bool cannot(Guard &guard, const DriverFacts &driver) {
    const std::size_t remedy = driver.fault.find("; ");
    return guard.refuse(!driver.fault.empty(), driver.fault.substr(0, remedy),
                        remedy == std::string::npos ? kSeeSmi : driver.fault.substr(remedy + 2)) ||
           guard.refuse(driver.cuda < kFirstWithCheckpoint || !driver.has_checkpoint,
                        fmt::format("driver {} cannot move processes out of their GPUs",
                                    driver.version.empty() ? "of an unknown version" : driver.version),
                        "that takes 570 or newer; curb release gives cached memory back with any") ||
           guard.refuse(!driver.state,
                        "the driver does not know it as a process that uses CUDA (" + driver.state_error + ")",
                        "nvidia-smi lists those that do; the pid must be the one of this machine or container") ||
           guard.refuse(driver.state == CU_PROCESS_STATE_FAILED,
                        "the driver has given it up: an earlier suspend or resume failed for good",
                        "all that is left is to end it (kill -9)");
}

bool wrong_state(Guard &guard, CUprocessState state, int pid) {
    return guard.refuse(state == CU_PROCESS_STATE_CHECKPOINTED, "it is suspended already",
                        fmt::format("curb resume {} brings it back", pid)) ||
           guard.refuse(state == CU_PROCESS_STATE_LOCKED,
                        "it is locked: a suspend or resume was cut short, or another tool is at work on it",
                        fmt::format("curb resume {} unlocks it, so that it runs again", pid));
}

bool not_alone(Guard &guard, const SuspendFacts &facts) {
    const bool has_nccl = facts.target.has_nccl;
    const auto ranks = ranks_of(*facts.target.environment).value_or(Ranks());
    return guard.refuse(
               !ranks.variable.empty() && (has_nccl || !facts.force),
               fmt::format(
                   "it is one of several processes that work together ({}={}), and the others would wait for it",
                   ranks.variable, ranks.count),
               std::string("suspend none of such a job, or end all of it; curb release gives back what each caches") +
                   (has_nccl ? " (NCCL is loaded, so --force does not help)"
                             : "; --force if they do not depend on each other")) ||
           guard.refuse(
               facts.companion != 0 && !facts.force,
               fmt::format("it works together with {}, which uses a GPU and would wait for it", facts.companion),
               "--force if they do not depend on each other");
}

bool shared_in_hardware(Guard &guard, const SuspendFacts &facts, const std::vector<const GpuState *> &gpus) {
    const int pid = facts.target.process.pid;
    const auto divided = std::find_if(gpus.begin(), gpus.end(), [](const GpuState *gpu) { return gpu->mig; });
    const auto visible = facts.target.environment->find("CUDA_VISIBLE_DEVICES");
    const bool names_part =
        visible != facts.target.environment->end() && visible->second.find("MIG-") != std::string::npos;
    if (guard.refuse(divided != gpus.end() || names_part,
                     (divided != gpus.end() ? gpu_name(**divided) : "its GPU") +
                         " is divided (MIG), and the driver cannot move a process out of a part",
                     kReleaseInstead))
        return true;
    return std::any_of(gpus.begin(), gpus.end(), [&](const GpuState *gpu) {
        return guard.refuse(gpu->shares_host_memory,
                            gpu_name(*gpu) + " shares the host's memory, so a suspend would make no room",
                            kReleaseInstead) ||
               guard.refuse(
                   gpu->is_mps_client(pid),
                   "it shares " + gpu_name(*gpu) + " through MPS, and the driver cannot move a client of MPS out of it",
                   kReleaseInstead);
    });
}

bool wrong_gpus(Guard &guard, const SuspendFacts &facts) {
    if (!*facts.gpus) return guard.refuse(true, "NVML does not report who holds what: " + facts.gpus->error(), kSeeSmi);
    const int pid = facts.target.process.pid;
    const auto gpus = gpus_of(**facts.gpus, pid);
    if (guard.refuse(gpus.empty(), "NVML lists no GPU memory of it",
                     "nvidia-smi lists those that have some; the pid must be the one of this machine") ||
        shared_in_hardware(guard, facts, gpus))
        return true;
    for (const GpuState *gpu : gpus)
        if (guard.refuse(!gpu->user(pid)->held, "NVML does not report how much it holds of " + gpu_name(*gpu),
                         "try as root (sudo curb ...)"))
            return true;
    if (!facts.host) return false;
    const Bytes held = held_by(**facts.gpus, pid);
    if (facts.is_nap) {
        Bytes most = facts.host->total;
        for (const policy::Size &size : facts.most_host) most = std::min(most, size.on(facts.host->total));
        const Bytes spare = policy::kept_free_of_host(facts.host->total);
        if (guard.refuse(held > most && most < facts.host->total,
                         fmt::format("{} would have to go to host memory, and suspend.host_memory is {}",
                                     format_human(held), format_human(most)),
                         "raise it") ||
            guard.refuse(
                held + spare > facts.host->available,
                fmt::format("{} would have to go to host memory, where {} are available: less than a tenth of it "
                            "would be left",
                            format_human(held), format_human(facts.host->available)),
                "make room there"))
            return true;
    }
    // This process and others may allocate host memory during the move.
    const Bytes margin = std::max(held / 16, 256 * policy::MiB);
    return guard.refuse(
        held + margin > facts.host->available,
        fmt::format("{} would have to go to host memory, with {} to spare, and {} has room for {}", format_human(held),
                    format_human(margin), facts.host->limit, format_human(facts.host->available)),
        "make room there first");
}

bool no_room(Guard &guard, const ResumeFacts &facts, const Need &need) {
    const GpuState *gpu = gpu_with(**facts.gpus, need.uuid);
    if (!gpu)
        return guard.refuse(true, need.uuid + ", which it was on, is not there any more", "bring that GPU back first");
    if (gpu->free >= need.bytes) return false;
    std::string users;
    for (const GpuUser &user : gpu->users) {
        if (user.pid == facts.target.process.pid) continue;
        users += (users.empty() ? " (there: " : ", ") + user.text;
        if (user.held) users += " " + format_human(*user.held);
    }
    return guard.refuse(
        true,
        fmt::format("it needs {} of {}, and only {} are free: {} are missing, and the driver would give "
                    "it up for good{}",
                    format_human(need.bytes), gpu_name(*gpu), format_human(gpu->free),
                    format_human(need.bytes - gpu->free), users.empty() ? "" : users + ")"),
        "make room first (curb release or curb suspend others), or wait for it with --wait 10m");
}

std::optional<Refusal> why_not_resume(const ResumeFacts &facts, bool with_room) {
    Guard guard("resume", facts.target);
    const auto refuses = [&] {
        if (not_ours(guard, facts)) return true;
        if (facts.driver) {
            if (cannot(guard, *facts.driver) || guard.refuse(*facts.driver->state == CU_PROCESS_STATE_RUNNING,
                                                             "it is not suspended: it runs", "there is nothing to do"))
                return true;
            if (*facts.driver->state == CU_PROCESS_STATE_LOCKED) return false;
        }
        if (guard.refuse(facts.needs && facts.needs->empty(),
                         "there is no record of what has to come back, and with too little room the driver would give "
                         "it up for good",
                         "give what it held of each GPU with --bytes SIZE"))
            return true;
        if (facts.gpus && !*facts.gpus)
            return guard.refuse(true, "NVML does not report what is free: " + facts.gpus->error(), kSeeSmi);
        return with_room && facts.gpus && facts.needs &&
               std::any_of(facts.needs->begin(), facts.needs->end(),
                           [&](const Need &need) { return no_room(guard, facts, need); });
    };
    refuses();
    return std::move(guard).take();
}

}  // namespace

std::optional<Refusal> why_not_suspend(const SuspendFacts &facts) {
    Guard guard("suspend", facts.target);
    const auto &driver = facts.driver;
    const Books books = facts.books.value_or(Books{0, ""});
    not_ours(guard, facts) || is_unreadable(guard, facts) ||
        (driver && (cannot(guard, *driver) || wrong_state(guard, *driver->state, facts.target.process.pid))) ||
        not_alone(guard, facts) || (facts.gpus && wrong_gpus(guard, facts)) ||
        guard.refuse(books.managed.value_or(0) != 0,
                     fmt::format("it has {} of managed memory, which the driver cannot move out",
                                 format_human(books.managed.value_or(0))),
                     kReleaseInstead) ||
        guard.refuse(!books.managed && !facts.force,
                     "it cannot be known whether it has managed memory, which the driver cannot move out (" +
                         books.unknown + ")",
                     "--force if it has none; the driver's refusal leaves it running");
    return std::move(guard).take();
}

std::optional<Refusal> why_not_resume(const ResumeFacts &facts) { return why_not_resume(facts, true); }

bool only_room_is_lacking(const ResumeFacts &facts) {
    return why_not_resume(facts).has_value() && !why_not_resume(facts, false).has_value();
}

Bytes room_for(Bytes held, Bytes free, Bytes left) {
    // The margin is at most the memory that was free then: a process that filled a device must be able to return to it.
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
