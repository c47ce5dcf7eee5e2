#include <algorithm>
#include <array>
#include <cstring>

#include "control/proc.hpp"
#include "doctor.hpp"
#include "driver.hpp"
#include "policy/words.hpp"

namespace curb::cli {
namespace {

constexpr int kOldestTried = 11040;

Finding ok(const char *check, std::string text) { return {check, Verdict::ok, std::move(text), {}}; }
Finding note(const char *check, std::string text, std::string remedy = {}) {
    return {check, Verdict::note, std::move(text), std::move(remedy)};
}
Finding problem(const char *check, std::string text, std::string remedy) {
    return {check, Verdict::problem, std::move(text), std::move(remedy)};
}

std::string cuda_text(int cuda) {
    return "CUDA " + std::to_string(cuda / 1000) + "." + std::to_string(cuda % 1000 / 10);
}

// Splits "the fault; the remedy", the form of other messages of curb.
Finding problem(const char *check, const std::string &told) {
    const std::size_t end = told.rfind("; ");
    if (end == std::string::npos) return {check, Verdict::problem, told, {}};
    return {check, Verdict::problem, told.substr(0, end), told.substr(end + 2)};
}

// The codes of cuInit that have one cause, with its remedy.
struct InitFault {
    int code;
    const char *text, *remedy;
};
constexpr InitFault kInitFaults[] = {
    {34, "the libcuda.so.1 that is found is the toolkit's stub, not a driver",
     "take the folder of stubs out of LD_LIBRARY_PATH"},
    {802, "the GPUs of this machine are not ready: CUDA_ERROR_SYSTEM_NOT_READY",
     "start nvidia-fabricmanager, of the driver's own version"},
    {803, "the driver's library and the kernel's module are of different versions",
     "restart the machine, or load the module again; in a container, restart it"},
    {804, "the driver's library is newer than the kernel's module, which this GPU does not allow",
     "take the compat folder out of LD_LIBRARY_PATH, or update the driver"},
};

void judge(const DriverCondition &driver, Findings &out) {
    constexpr const char *kCheck = "driver";
    const bool has_module = !driver.kernel.empty();
    const std::string permission = "this user may not open " + policy::joined(driver.closed, ", ") + " (of the driver)";
    constexpr const char *kPermission = "be in the group of those files, or have the container be given the GPU";
    if (!driver.fault.empty())
        return out.push_back(problem(kCheck, "there is no CUDA driver here: " + driver.fault,
                                     has_module
                                         ? "the kernel has NVIDIA's module: install the driver's libcuda, or give the "
                                           "container its GPUs (docker run --gpus all)"
                                         : "install NVIDIA's driver; without a GPU, curb run --sim tries a policy"));
    if (driver.silent)
        return out.push_back(problem(kCheck, "the CUDA driver has not answered cuInit in time",
                                     "see what nvidia-smi and dmesg say; a GPU may have fallen off the bus"));
    if (driver.init != CUDA_SUCCESS) {
        const auto *known = std::find_if(std::begin(kInitFaults), std::end(kInitFaults),
                                         [&](const InitFault &one) { return one.code == driver.init; });
        if (known != std::end(kInitFaults)) return out.push_back(problem(kCheck, known->text, known->remedy));
        const std::string failed = "the CUDA driver cannot be initialised: " + driver.init_text;
        if (!driver.closed.empty()) return out.push_back(problem(kCheck, failed + "; " + permission, kPermission));
        if (driver.init == CUDA_ERROR_NO_DEVICE && !driver.has_device_files)
            return out.push_back(problem(kCheck, failed + "; there is no /dev/nvidiactl",
                                         has_module ? "give the container its GPUs (docker run --gpus all)"
                                                    : "load the kernel's module: modprobe nvidia"));
        return out.push_back(problem(kCheck, failed, "see what nvidia-smi and dmesg say"));
    }
    out.push_back(ok(kCheck, (driver.version.empty() ? "" : driver.version + ", ") + cuda_text(driver.cuda)));
    if (!driver.closed.empty()) out.push_back(note(kCheck, permission, kPermission));
    if (driver.visible && (driver.visible->empty() || *driver.visible == "-1"))
        out.push_back(note(
            kCheck,
            "CUDA_VISIBLE_DEVICES is \"" + *driver.visible + "\" here, so programs that are started here see no GPU",
            "unset CUDA_VISIBLE_DEVICES"));
    if (driver.cuda < kOldestTried)
        out.push_back(note("driver-version",
                           cuda_text(driver.cuda) + " is older than 11.4, the oldest that curb is tried with",
                           "update the driver"));
    if (driver.cuda < kFirstWithCheckpoint || !driver.has_checkpoint)
        out.push_back(note("driver-version",
                           "this driver cannot move processes out of their GPUs, so there is no curb suspend",
                           "that takes driver 570 (CUDA 12.8) or newer"));
}

// Returns the capped processes that use a GPU and that NVML does not list there.
std::vector<std::string> unlisted(const View &view) {
    std::vector<std::string> out;
    for (const ViewGpu &gpu : view.gpus)
        for (const ViewUse &use : gpu.uses) {
            const ViewProcess &process = view.processes[use.process];
            const control::GpuStatus *books = books_of(view, use);
            if (books && books->contexts > 0 && !use.nvml && !process.suspended)
                out.push_back(std::to_string(process.pid));
        }
    return out;
}

void judge(const NvmlCondition &nvml, const DriverCondition &driver, const std::optional<View> &view, Findings &out) {
    constexpr const char *kCheck = "nvml";
    if (!driver.fault.empty()) return;  // one cause is enough
    if (!nvml.fault.empty())
        return out.push_back(
            problem(kCheck,
                    nvml.fault.substr(0, nvml.fault.find("; ")) +
                        ", so curb foresees what the driver takes instead of measuring it",
                    "give the container NVML too (NVIDIA_DRIVER_CAPABILITIES=compute,utility), or mend it "
                    "until nvidia-smi works"));
    const auto blind = view ? unlisted(*view) : std::vector<std::string>();
    if (blind.empty()) {
        out.push_back(ok(kCheck, "tells what processes hold"));
    } else {
        out.push_back(note(kCheck,
                           "NVML does not list process " + policy::joined(blind, ", ") +
                               ", as in some containers, so what the driver takes for code there is not measured",
                           "let the container share the machine's pids (docker run --pid=host), if that matters"));
    }
    for (const NvmlCondition::Gpu &gpu : nvml.gpus) {
        const std::string name = "GPU " + std::to_string(gpu.index);
        if (gpu.mig)
            out.push_back(note(
                "mig", name + " is divided (MIG): each instance is capped by itself, and there is no curb suspend"));
        if (gpu.mps_clients > 0)
            out.push_back(note("mps", name + " is shared through MPS by " + std::to_string(gpu.mps_clients) +
                                          (gpu.mps_clients == 1 ? " process" : " processes") +
                                          ", which curb suspend refuses"));
        if (!gpu.kept_awake)
            out.push_back(note("persistence",
                               name + " is put to sleep whenever nobody uses it: the first CUDA call, and "
                                      "curb suspend, then take seconds",
                               "as root: nvidia-smi -pm 1"));
    }
}

void judge(const LibraryCondition &library, Findings &out) {
    constexpr const char *kCheck = "library";
    const auto wrong = [&](const std::string &what, std::string remedy) {
        out.push_back(problem(kCheck, library.path + " " + what, std::move(remedy)));
    };
    if (!library.fault.empty()) return out.push_back(problem(kCheck, library.fault));
    if (!library.elf) return wrong("cannot be read by this user", "chmod a+r " + library.path);
    const std::size_t before = out.size();
    if (!library.not_carried.empty()) out.push_back(problem(kCheck, library.not_carried));
    if (library.command &&
        (library.elf->machine != library.command->machine || library.elf->bits != library.command->bits))
        wrong("is for " + architecture_of(*library.elf) + ", and this command for " + architecture_of(*library.command),
              "install curb for " + architecture_of(*library.command));
    if (library.no_exec)
        wrong("lies on a file system that is mounted noexec, so the loader passes it over", "install curb elsewhere");
    constexpr unsigned kOthersWrite = 02, kSticky = 01000;
    if ((library.mode & kOthersWrite) != 0)
        wrong("can be written by everybody, and with it what every program under curb does",
              "chmod o-w " + library.path);
    else if ((library.folder_mode & kOthersWrite) != 0 && (library.folder_mode & kSticky) == 0)
        wrong("lies in a folder that everybody can write to, and with it what every program under curb does",
              "chmod o-w " + library.path.substr(0, library.path.rfind('/')));
    if ((library.mode & 04) == 0)
        out.push_back(note(kCheck,
                           library.path + " cannot be read by everybody; other users' programs start without it",
                           "chmod a+r " + library.path));
    if (out.size() == before) out.push_back(ok(kCheck, library.path));
}

void judge(const PreloadFile &file, Findings &out) {
    constexpr const char *kCheck = "ld.so.preload";
    if (!file.missing.empty())
        out.push_back(problem(kCheck, "/etc/ld.so.preload names " + file.missing + ", which is not there",
                              "correct /etc/ld.so.preload, or install curb again"));
    else if (file.names_curb)
        out.push_back(note(kCheck, "/etc/ld.so.preload names libcurb.so: every program of this machine is under curb"));
}

void judge(const RuntimeCondition &runtime, Findings &out) {
    constexpr const char *kCheck = "runtime-folder";
    if (runtime.folder.empty())
        out.push_back(problem(
            kCheck,
            "there is no folder for control sockets, so processes started here cannot be asked: " + runtime.fault,
            "mend one of those folders, or set XDG_RUNTIME_DIR to one of this user's own"));
    else if (!runtime.passed_over.empty())
        out.push_back(
            note(kCheck, runtime.folder + " is used instead of that in XDG_RUNTIME_DIR: " + runtime.passed_over));
    else
        out.push_back(ok(kCheck, runtime.folder + (runtime.xdg.empty() ? " (XDG_RUNTIME_DIR is not set)" : "")));
}

const char *without_policy(bool has_ceiling, bool ceiling_is_valid) {
    if (!ceiling_is_valid) return "the ceiling alone decides, and it cannot be used";
    return has_ceiling ? "programs are held to the ceiling alone" : "programs are watched, and not held to anything";
}

void judge(const PolicyCondition &policy, Findings &out) {
    const config::Source &source = policy.source;
    bool own = true, ceiling = true;
    for (const config::Diagnostic &fault : policy.faults) {
        const bool of_ceiling = fault.file == source.ceiling;
        (of_ceiling ? ceiling : own) = false;
        // Of a ceiling that is not trusted the message ends with the remedy.
        out.push_back(problem(of_ceiling ? "ceiling" : "policy", fault.text(),
                              of_ceiling
                                  ? "as root, mend " + source.ceiling + ": until then no GPU allocation is granted"
                              : source.named ? "mend it; curb run refuses to start programs with it"
                                             : "mend it, or remove it; curb run refuses to start programs with it"));
    }
    if (!source.foreign.empty())
        out.push_back(note("policy", source.foreign + " is not used, because it belongs to another user",
                           "chown it, name it in CURB_POLICY, or set HOME to this user's home"));
    if (own) {
        std::string what = source.file.empty() ? "" : source.file + " is valid";
        if (!source.cap.empty()) what += (what.empty() ? "" : ", ") + ("CURB_CAP is " + source.cap);
        if (what.empty()) what = "none here: " + std::string(without_policy(policy.has_ceiling, ceiling));
        out.push_back(ok("policy", what));
    }
    if (ceiling && policy.has_ceiling) out.push_back(ok("ceiling", source.ceiling + " is valid"));
}

std::string who(const ViewProcess &process) {
    std::string out = control::process_text(process.pid);
    if (!process.name.empty()) out += " (" + process.name + ")";
    return out + (process.user.empty() ? "" : " of " + process.user);
}

std::string gpu_name(const ViewGpu &gpu) {
    return gpu.index && gpu.parent.empty() ? "GPU " + std::to_string(*gpu.index) : gpu.uuid;
}

void judge(const View &view, Findings &out) {
    constexpr const char *kCheck = "processes";
    std::size_t capped = 0;
    const std::size_t before = out.size();
    for (const ViewProcess &process : view.processes) {
        if (!process.under_curb) continue;
        ++capped;
        const std::string pid = std::to_string(process.pid);
        if (!process.status) {
            const bool waits = process.stopped || process.suspended;
            // The remedy, if it names one, stands beside it.
            const std::string trouble = process.trouble.substr(0, process.trouble.find(": see curb doctor "));
            out.push_back({kCheck, waits ? Verdict::note : Verdict::problem,
                           who(process) + " is under curb and does not say what it holds: it " + trouble,
                           waits ? "" : "curb doctor " + pid + " may say why"});
        } else if (process.status->policy.unusable) {
            out.push_back(problem(kCheck,
                                  who(process) + " has a policy that cannot be used, so it gets no GPU memory: " +
                                      process.status->policy.error,
                                  "mend " + process.status->policy.file + "; it is read at once"));
        } else if (!process.status->policy.error.empty()) {
            out.push_back(problem(
                kCheck,
                "the last edit of the policy of " + who(process) + " is not in force: " + process.status->policy.error,
                "mend " + process.status->policy.file + "; it is read at once"));
        }
    }
    for (const ViewGpu &gpu : view.gpus)
        for (const ViewUse &use : gpu.uses) {
            const ViewProcess &process = view.processes[use.process];
            if (process.under_curb || (use.nvml && *use.nvml == 0)) continue;
            const std::string what = (use.nvml ? policy::format_human(*use.nvml) : "memory") + " of " + gpu_name(gpu);
            out.push_back(process.elsewhere
                              ? note(kCheck, who(process) + " of another pid namespace holds " + what +
                                                 "; from here it is not seen whether it is under curb")
                              : note(kCheck, who(process) + " is not under curb and holds " + what,
                                     "curb doctor " + std::to_string(process.pid) + " says why, if it should be"));
        }
    if (out.size() == before)
        out.push_back(ok(kCheck, capped == 0   ? "none is under curb"
                                 : capped == 1 ? "the one under curb answers"
                                               : "the " + std::to_string(capped) + " under curb answer"));
}

}  // namespace

const char *verdict_name(Verdict verdict) {
    switch (verdict) {
        case Verdict::ok: return "ok";
        case Verdict::note: return "note";
        case Verdict::problem: break;
    }
    return "problem";
}

bool has_problem(const Findings &findings) {
    return std::any_of(findings.begin(), findings.end(),
                       [](const Finding &one) { return one.verdict == Verdict::problem; });
}

Findings examine(const MachineCondition &facts) {
    Findings out;
    judge(facts.driver, out);
    judge(facts.nvml, facts.driver, facts.view, out);
    judge(facts.library, out);
    judge(facts.preload_file, out);
    judge(facts.runtime, out);
    judge(facts.policy, out);
    if (facts.view) judge(*facts.view, out);
    return out;
}

}  // namespace curb::cli
