// Collects facts about this machine: the driver, NVML and the files that curb needs.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "control/runtime_dir.hpp"
#include "doctor.hpp"
#include "driver.hpp"
#include "libraries.hpp"
#include "nvml.hpp"
#include "within.hpp"

namespace curb::cli {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr auto kDriverPatience = 30s;    // waking eight GPUs that sleep takes half of it
constexpr auto kProcessesPatience = 2s;  // of capped processes

// The first word that is a version: "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  …" -> "580.159.04".
std::string kernel_version() {
    std::ifstream file("/proc/driver/nvidia/version");
    for (std::string word; file >> word;) {
        const std::size_t point = word.find('.');
        if (point != std::string::npos && point > 0 && word.find_first_not_of("0123456789.") == std::string::npos)
            return word;
    }
    return {};
}

// Returns the driver's device files that this user may not read and write.
std::vector<std::string> closed_device_files() {
    std::vector<std::string> out;
    std::error_code error;
    for (fs::directory_iterator entry("/dev", error), end; !error && entry != end; entry.increment(error)) {
        const std::string name = entry->path().filename().string();
        const bool is_gpu = name.starts_with("nvidia") && name.size() > 6 &&
                            name.find_first_not_of("0123456789", 6) == std::string::npos;
        if (!is_gpu && name != "nvidiactl" && name != "nvidia-uvm") continue;
        if (::access(entry->path().c_str(), R_OK | W_OK) != 0) out.push_back(entry->path().string());
    }
    std::sort(out.begin(), out.end());
    return out;
}

DriverCondition driver_condition() {
    DriverCondition out;
    out.kernel = kernel_version();
    out.has_device_files = ::access("/dev/nvidiactl", F_OK) == 0;
    out.closed = closed_device_files();
    if (const char *visible = std::getenv("CUDA_VISIBLE_DEVICES")) out.visible = visible;
    const auto loaded = load_driver();
    if (!loaded) {
        out.fault = loaded.error();
        return out;
    }
    out.cuda = loaded->version;
    out.has_checkpoint = loaded->has_checkpoint;
    const auto answer = within(kDriverPatience, [driver = *loaded] { return driver.cuInit(0); });
    out.silent = !answer;
    out.init = answer.value_or(CUDA_SUCCESS);
    if (out.init != CUDA_SUCCESS) out.init_text = loaded->text(out.init);
    return out;
}

struct NvmlSays {
    NvmlCondition condition;
    std::string version;
};
NvmlSays what_nvml_says() {
    NvmlSays out;
    const auto nvml = Nvml::open();
    if (!nvml) {
        out.condition.fault = nvml.error();
        return out;
    }
    out.version = nvml->driver_version();
    const auto gpus = nvml->gpus();
    if (!gpus) {
        out.condition.fault = gpus.error();
        return out;
    }
    for (const GpuState &gpu : *gpus)
        out.condition.gpus.push_back({gpu.index, gpu.mig, gpu.kept_awake, gpu.mps_clients.size()});
    return out;
}

LibraryCondition library_condition() {
    LibraryCondition out;
    const auto found = find_library();
    if (!found) {
        out.fault = found.error();
        return out;
    }
    out.path = found->string();
    out.elf = read_elf(out.path);
    out.command = read_elf("/proc/self/exe");
    struct stat file {
    }, folder{};
    if (::stat(out.path.c_str(), &file) == 0) {
        out.owner = file.st_uid;
        out.mode = file.st_mode & 07777;
    }
    if (::stat(found->parent_path().c_str(), &folder) == 0) {
        out.folder_owner = folder.st_uid;
        out.folder_mode = folder.st_mode & 07777;
    }
    struct statvfs system {};
    out.no_exec = ::statvfs(out.path.c_str(), &system) == 0 && (system.f_flag & ST_NOEXEC) != 0;
    out.not_carried = not_carried(*found, "LD_PRELOAD", kPreloadSeparators).value_or("");
    return out;
}

PreloadFile preload_file() {
    PreloadFile out;
    std::ifstream file("/etc/ld.so.preload");
    for (std::string line; std::getline(file, line);) {
        std::istringstream words(line.substr(0, line.find('#')));
        for (std::string path; words >> path;) {
            if (path.find("libcurb.so") == std::string::npos) continue;
            out.names_curb = true;
            if (path.starts_with('/') && path.find('$') == std::string::npos && ::access(path.c_str(), F_OK) != 0)
                out.missing = path;
        }
    }
    return out;
}

RuntimeCondition runtime_condition() {
    RuntimeCondition out;
    const control::Places places = control::places();
    out.xdg = places.xdg;
    out.passed_over = control::why_not_in_xdg(places, ::geteuid());
    const auto folder = control::runtime_directory(places, ::geteuid());
    if (!folder)
        out.fault = folder.error();
    else if (::faccessat(AT_FDCWD, folder->path.c_str(), W_OK | X_OK, AT_EACCESS) != 0)
        out.fault = folder->path + " cannot be written to: " + std::strerror(errno);
    else
        out.folder = folder->path;
    return out;
}

PolicyCondition policy_condition() {
    PolicyCondition out;
    out.source = config::locate([](const char *name) -> const char * { return std::getenv(name); });
    if (const auto reading = config::read(out.source))
        out.has_ceiling = reading->ceiling.has_value();
    else
        out.faults = reading.error();
    return out;
}

}  // namespace

MachineCondition look_at_machine() {
    MachineCondition out;
    out.user = ::geteuid();
    out.driver = driver_condition();
    const std::string silent = "NVML has not answered for " + std::to_string(kNvmlPatience.count()) + " s";
    auto nvml = within(kNvmlPatience, what_nvml_says);
    out.nvml = nvml ? nvml->condition : NvmlCondition{silent, {}};
    if (nvml) out.driver.version = nvml->version;
    out.library = library_condition();
    out.preload_file = preload_file();
    out.runtime = runtime_condition();
    out.policy = policy_condition();
    if (nvml) out.view = within(kNvmlPatience, [] { return look_around(kProcessesPatience); });
    return out;
}

}  // namespace curb::cli
