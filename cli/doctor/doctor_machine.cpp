#include <algorithm>
#include <array>

#include "doctor/doctor.hpp"
#include "machine/driver.hpp"
#include "machine/target.hpp"
#include "policy/values/words.hpp"
#include "terminal/format.hpp"
#include "terminal/text_width.hpp"

namespace curb::cli {
namespace {

constexpr int kOldestTried = 11040;
// CUDA_ERROR_SYSTEM_NOT_READY, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE
constexpr int kSystemNotReady = 802, kDriverMismatch = 803, kCompatNotSupported = 804;

std::string cuda_text(int cuda) { return fmt::format("CUDA {}.{}", cuda / 1000, cuda % 1000 / 10); }

// Adds a message of the form "FAULT; REMEDY" as a problem.
void add_fault(const Check &check, const std::string &message) {
    const std::size_t end = std::min(message.rfind("; "), message.size());
    check.problem(true, message.substr(0, end), message.substr(std::min(end + 2, message.size())));
}

void judge_naps(const DriverCondition &driver, const Check &check) {
    check.note(!driver.unified.empty(),
               "there are none, nor turns: they would make no room in memory that GPU and host share") ||
        check.note(!driver.no_vmm.empty(),
                   policy::joined(driver.no_vmm, ", ") +
                       ": no virtual memory management, so curb itself moves nothing in naps",
                   "the driver moves all, at its own rate") ||
        check.ok(true, "curb itself can move what a program has allocated, at the rate of the bus");
}

std::string closed_text(const DriverCondition &driver) {
    return "this user may not open " + policy::joined(driver.closed, ", ") + " (of the driver)";
}
constexpr const char *kOpen = "be in the group of those files, or have the container be given the GPU";

// Adds the problem because of which no program can use the driver. False if there is none.
bool is_unusable(const DriverCondition &driver, const Check &check) {
    const bool has_module = !driver.kernel.empty(), failed = driver.init != CUDA_SUCCESS;
    const bool no_files = driver.init == CUDA_ERROR_NO_DEVICE && !driver.has_device_files;
    const int code = driver.init;
    const std::string missing = "there is no CUDA driver here: " + driver.fault;
    const std::string failure = "the CUDA driver cannot be initialised: " + driver.init_text;
    return check.problem(!driver.fault.empty() && has_module, missing,
                         "the kernel has NVIDIA's module: install the driver's libcuda, or give the container its GPUs "
                         "(docker run --gpus all)") ||
           check.problem(!driver.fault.empty(), missing,
                         "install NVIDIA's driver; without a GPU, curb run --sim tries a policy") ||
           check.problem(driver.silent, "the CUDA driver has not answered cuInit in time",
                         "see what nvidia-smi and dmesg say; a GPU may have fallen off the bus") ||
           check.problem(code == CUDA_ERROR_STUB_LIBRARY,
                         "the libcuda.so.1 that is found is the toolkit's stub, not a driver",
                         "take the folder of stubs out of LD_LIBRARY_PATH") ||
           check.problem(code == kSystemNotReady, "the GPUs of this machine are not ready: CUDA_ERROR_SYSTEM_NOT_READY",
                         "start nvidia-fabricmanager, of the driver's own version") ||
           check.problem(code == kDriverMismatch,
                         "the driver's library and the kernel's module are of different versions",
                         "restart the machine, or load the module again; in a container, restart it") ||
           check.problem(code == kCompatNotSupported,
                         "the driver's library is newer than the kernel's module, which this GPU does not allow",
                         "take the compat folder out of LD_LIBRARY_PATH, or update the driver") ||
           check.problem(failed && !driver.closed.empty(), failure + "; " + closed_text(driver), kOpen) ||
           check.problem(no_files, failure + "; there is no /dev/nvidiactl",
                         has_module ? "give the container its GPUs (docker run --gpus all)"
                                    : "load the kernel's module: modprobe nvidia") ||
           check.problem(failed, failure, "see what nvidia-smi and dmesg say");
}

void judge(const DriverCondition &driver, Findings &out) {
    const Check check("driver", out), version("driver-version", out);
    if (is_unusable(driver, check)) return;
    const std::string visible = driver.visible.value_or("all");
    check.ok(true, (driver.version.empty() ? "" : driver.version + ", ") + cuda_text(driver.cuda));
    check.note(!driver.closed.empty(), closed_text(driver), kOpen);
    check.note(visible.empty() || visible == "-1",
               "CUDA_VISIBLE_DEVICES is \"" + visible + "\" here, so programs that are started here see no GPU",
               "unset CUDA_VISIBLE_DEVICES");
    version.note(driver.cuda < kOldestTried,
                 cuda_text(driver.cuda) + " is older than 11.4, the oldest that curb is tried with",
                 "update the driver");
    version.note(driver.cuda < kFirstWithCheckpoint || !driver.has_checkpoint,
                 "this driver cannot move whole processes, so there is no curb suspend, and naps leave the CUDA "
                 "context on the GPU",
                 "that takes driver 570 (CUDA 12.8) or newer");
    judge_naps(driver, Check("naps", out));
    Check("host-memory", out)
        .note(!driver.unified.empty(),
              policy::joined(driver.unified, ", ") +
                  " shares the host's memory, of which NVML has no figures: caps count what curb knows, and keep_free "
                  "and free memory go by what the host has available (MemAvailable)",
              "cap all programs or set growth.keep_free: a program that takes all memory takes the host's");
}

// Returns the processes under curb that have a context on a GPU and that NVML does not list there.
std::vector<std::string> unlisted(const View &view) {
    std::vector<std::string> out;
    for (const ViewGpu &gpu : view.gpus)
        for (const ViewUse &use : gpu.uses) {
            const ViewProcess &process = view.processes[use.process];
            const control::GpuStatus *books = books_of(view, use);
            if (books && books->contexts > 0 && !use.nvml && !process.suspended && !gpu.shares_host_memory)
                out.push_back(std::to_string(process.pid));
        }
    return out;
}

void judge(const NvmlGpus &nvml, const DriverCondition &driver, const View &view, Findings &out) {
    if (!driver.fault.empty()) return;  // one cause is enough
    const Check check("nvml", out), mig("mig", out), mps("mps", out), persistence("persistence", out);
    const auto hidden = unlisted(view);
    if (!nvml) {
        // Boards with such a GPU may have none that is usable.
        check.note(!driver.unified.empty(), nvml.error().substr(0, nvml.error().find("; "))) ||
            check.problem(true,
                          nvml.error().substr(0, nvml.error().find("; ")) +
                              ", so curb foresees what the driver takes instead of measuring it",
                          "give the container NVML too (NVIDIA_DRIVER_CAPABILITIES=compute,utility), or fix it "
                          "until nvidia-smi works");
        return;
    }
    const bool lists_none =
        std::any_of(nvml->begin(), nvml->end(), [](const auto &gpu) { return !gpu.lists_processes; });
    check.note(lists_none, std::string(kListsNone) +
                               ", so what the driver takes for code is not measured, and processes without curb are "
                               "not seen") ||
        check.ok(hidden.empty() && driver.unified.empty(), "reports what processes hold");
    note_unlisted(check, !lists_none && !hidden.empty(), "process " + policy::joined(hidden, ", "));
    for (const GpuState &gpu : *nvml) {
        const std::string name = "GPU " + std::to_string(gpu.index);
        mig.note(gpu.mig, name +
                              " is divided (MIG): each instance is capped by itself, there is no curb suspend, and "
                              "naps leave the CUDA context on it");
        mps.note(!gpu.mps_clients.empty(), fmt::format("{} is shared through MPS by {}, which curb suspend refuses",
                                                       name, counted(gpu.mps_clients.size(), "process")));
        persistence.note(
            !gpu.kept_awake,
            name +
                " is put to sleep whenever no process uses it: the first CUDA call, and curb suspend, then "
                "take seconds",
            "as root: nvidia-smi -pm 1");
    }
}

void judge(const LibraryCondition &library, Findings &out) {
    const Check check("library", out);
    const std::string &path = library.path;
    if (!library.fault.empty()) return add_fault(check, library.fault);
    if (check.problem(!library.elf, path + " cannot be read by this user", "chmod a+r " + path)) return;
    constexpr unsigned kOthersWrite = 02, kOthersRead = 04, kSticky = 01000;
    const bool writable = (library.mode & kOthersWrite) != 0;
    const bool folder_writable = (library.folder_mode & kOthersWrite) != 0 && (library.folder_mode & kSticky) == 0;
    const std::string ours = library.command ? architecture_of(*library.command) : "";
    const std::size_t before = out.size();
    if (!library.not_carried.empty()) add_fault(check, library.not_carried);
    check.problem(library.command && !same_architecture(*library.elf, *library.command),
                  path + " is for " + architecture_of(*library.elf) + ", and this command for " + ours,
                  "install curb for " + ours);
    check.problem(library.no_exec, path + " lies on a file system that is mounted noexec, so the loader ignores it",
                  "install curb elsewhere");
    check.problem(writable, path + " can be written by everybody, and with it what every program under curb does",
                  "chmod o-w " + path);
    check.problem(
        !writable && folder_writable,
        path + " lies in a folder that everybody can write to, and with it what every program under curb does",
        "chmod o-w " + path.substr(0, path.rfind('/')));
    check.note((library.mode & kOthersRead) == 0,
               path + " cannot be read by everybody; other users' programs start without it", "chmod a+r " + path);
    check.ok(out.size() == before, path);
    Check("python-module", out)
        .note(!library.python_clash.empty(),
              library.python_clash +
                  " also has PyPI's curb, another project with a module of the same name: import curb "
                  "may load that one",
              "pip uninstall curb, then pip install --force-reinstall curb-gpu");
}

std::string named(const std::string &path, const std::string &version) {
    return path + (version.empty() ? " (of unknown version)" : " (" + version + ")");
}

void judge(const Installations &all, const LibraryCondition &library, Findings &out) {
    const Check check("installations", out);
    const Installation &own = all.own;
    const std::string used = library.elf ? library.elf->version : "";
    check.note(library.elf && !own.version.empty() && used != own.version,
               "this command is " + named(own.command, own.version) + ", and its library " + named(library.path, used),
               "install both from one package, or correct CURB_LIBRARY");
    for (const Installation &other : all.others) {
        const bool is_the_same = !other.version.empty() && other.version == own.version;
        const std::string both = fmt::format(
            "{} is installed too{}; this is {}, which uses {}", named(other.command, other.version),
            other.library.empty() ? "" : ", with " + other.library, named(own.command, own.version), library.path);
        check.ok(is_the_same, both) ||
            check.note(
                true, both + (all.first.empty() ? "" : "; a shell here starts " + all.first),
                "remove one (" + own.removal + "; or " + other.removal + "), or start the one you mean by its path");
    }
}

void judge(const PreloadFile &file, const Check &check) {
    check.problem(!file.missing.empty(), "/etc/ld.so.preload names " + file.missing + ", which is not there",
                  "correct /etc/ld.so.preload, or install curb again") ||
        check.note(file.names_curb, "/etc/ld.so.preload names libcurb.so: every program of this machine is under curb");
}

void judge(const RuntimeCondition &runtime, const Check &check) {
    check.problem(runtime.folder.empty(),
                  "there is no folder for control sockets, so processes started here cannot be asked: " + runtime.fault,
                  "fix one of those folders, or set XDG_RUNTIME_DIR to one of this user's own") ||
        check.note(!runtime.passed_over.empty(),
                   runtime.folder + " is used, because a folder before it cannot be: " + runtime.passed_over) ||
        check.ok(true, runtime.folder + (runtime.xdg.empty() ? " (XDG_RUNTIME_DIR is not set)" : ""));
}

void judge(const PolicyCondition &policy, Findings &out) {
    const Check own("policy", out), ceiling("ceiling", out);
    const config::Source &source = policy.source;
    bool own_is_valid = true, ceiling_is_valid = true;
    for (const config::Diagnostic &fault : policy.faults) {
        // If the ceiling is not trusted, the message itself ends with a remedy too.
        if (ceiling.problem(fault.file == source.ceiling, fault.text(),
                            "as root, fix " + source.ceiling + ": until then no GPU allocation is granted"))
            ceiling_is_valid = false;
        else
            own_is_valid = !own.problem(true, fault.text(),
                                        std::string(source.named ? "fix it" : "fix it, or remove it") +
                                            "; curb run refuses to start programs with it");
    }
    own.note(!source.foreign.empty(), source.foreign + " is not used, because it belongs to another user",
             "chown it, name it in CURB_POLICY, or set HOME to this user's home");
    std::vector<std::string> said;
    if (!source.file.empty()) said.push_back(source.file + " is valid");
    if (!source.cap.empty()) said.push_back("CURB_CAP is " + source.cap);
    if (!source.job_cap.empty()) said.push_back("CURB_JOB_CAP is " + source.job_cap);
    for (const auto &[name, value] : source.handed_in) said.push_back(name + " is " + value);
    if (said.empty())
        said.emplace_back(!ceiling_is_valid    ? "none here: the ceiling alone decides, and it cannot be used"
                          : policy.has_ceiling ? "none here: the machine's ceiling alone limits programs"
                                               : "none here: curb observes programs and limits nothing");
    own.ok(own_is_valid, policy::joined(said, ", "));
    ceiling.ok(ceiling_is_valid && policy.has_ceiling, source.ceiling + " is valid");
}

std::string who(const ViewProcess &process) {
    return "process " + label_of(process.pid, process.name) + (process.user.empty() ? "" : " of " + process.user);
}

// Adds a finding if the process does not answer, or if its policy is not in force. Precondition: it is under curb.
void judge(const ViewProcess &process, const Check &check) {
    if (!process.status) {
        const std::string why = process.trouble.substr(0, process.trouble.find(": see curb doctor "));
        const std::string silent = who(process) + " is under curb and does not say what it holds: it " + why;
        check.note(process.stopped || process.suspended, silent) ||
            check.problem(true, silent, fmt::format("curb doctor {} may say why", process.pid));
        return;
    }
    const control::PolicyStatus &policy = process.status->policy;
    const std::string remedy = "fix " + policy.file + "; it is read at once";
    check.problem(policy.unusable,
                  who(process) + " has a policy that cannot be used, so it gets no GPU memory: " + policy.error,
                  remedy) ||
        check.problem(!policy.error.empty(),
                      "the last edit of the policy of " + who(process) + " is not in force: " + policy.error, remedy);
}

// Returns "1 running; 2 waiting: 4711 (python3), 4712 (python3)". Empty if all are running.
std::string states_text(const View &view) {
    std::array<std::vector<std::string>, kStates> by;
    std::size_t running = 0, all = 0;
    for (const ViewProcess &process : view.processes) {
        if (!process.under_curb) continue;
        const State state = state_of(process);
        ++all;
        if (state == State::running)
            ++running;
        else
            by[static_cast<std::size_t>(state)].push_back(label_of(process.pid, process.name));
    }
    std::vector<std::string> parts{fmt::format("{} running", running)};
    for (std::size_t i = 0; i < kStates; ++i)
        if (!by[i].empty())
            parts.push_back(
                fmt::format("{} {}: {}", by[i].size(), state_name(static_cast<State>(i)), policy::joined(by[i], ", ")));
    return running == all ? "" : policy::joined(parts, "; ");
}

void judge(const View &view, Findings &out) {
    const std::string states = states_text(view);
    Check("states", out).ok(!states.empty(), states);
    const Check check("processes", out);
    const std::size_t before = out.size();
    std::size_t capped = 0;
    for (const ViewProcess &process : view.processes) {
        if (!process.under_curb) continue;
        ++capped;
        judge(process, check);
    }
    for (const ViewGpu &gpu : view.gpus)
        for (const ViewUse &use : gpu.uses) {
            const ViewProcess &process = view.processes[use.process];
            if (is_under_curb(process).value_or(false) || (use.nvml && *use.nvml == 0)) continue;
            const std::string what = (use.nvml ? policy::format_human(*use.nvml) : "memory") + " of " +
                                     (gpu.index && gpu.parent.empty() ? "GPU " + std::to_string(*gpu.index) : gpu.uuid);
            check.note(process.elsewhere, who(process) + " of another pid namespace holds " + what +
                                              "; from here it is not seen whether it is under curb") ||
                check.note(process.unseen, who(process) + " holds " + what +
                                               "; only that user and root can see whether it is under curb") ||
                check.note(true, who(process) + " is not under curb and holds " + what,
                           fmt::format("curb doctor {} says why, if it should be", process.pid));
        }
    check.ok(out.size() == before, capped == 0   ? "none is under curb"
                                   : capped == 1 ? "the one under curb answers"
                                                 : fmt::format("the {} under curb answer", capped));
}

}  // namespace

Findings examine(const MachineCondition &facts) {
    Findings out;
    judge(facts.driver, out);
    judge(facts.nvml, facts.driver, facts.view, out);
    judge(facts.library, out);
    judge(facts.installations, facts.library, out);
    judge(facts.preload_file, Check("ld.so.preload", out));
    judge(facts.runtime, Check("runtime-folder", out));
    judge(facts.policy, out);
    judge(facts.view, out);
    return out;
}

}  // namespace curb::cli
