// Collects facts about this machine (driver, NVML, curb's files) and about a process (/proc, control socket, NVML).
#include <elf.h>
#include <fcntl.h>
#include <pwd.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string_view>

#include "control/client.hpp"
#include "control/proc.hpp"
#include "control/runtime_dir.hpp"
#include "doctor/doctor.hpp"
#include "machine/driver.hpp"
#include "machine/libraries.hpp"
#include "machine/target.hpp"
#include "machine/within.hpp"
#include "policy/values/words.hpp"

namespace curb::cli {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr auto kProcessesPatience = 2s;  // for processes under curb to answer

// Returns the first word that is a version: "580.159.04" in "NVRM version: … Kernel Module  580.159.04  …".
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

// Returns the devices that have this attribute, or those that do not.
std::vector<std::string> devices_by(const Driver &driver, CUdevice_attribute attribute, bool with) {
    std::vector<std::string> out;
    int count = 0;
    if (!driver.cuDeviceGetCount || driver.cuDeviceGetCount(&count) != CUDA_SUCCESS) return out;
    for (int device = 0; device < count; ++device) {
        int has = 0;
        const bool is_known =
            driver.cuDeviceGetAttribute && driver.cuDeviceGetAttribute(&has, attribute, device) == CUDA_SUCCESS;
        if ((is_known && has != 0) == with) out.push_back("cuda:" + std::to_string(device));
    }
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
    if (out.init != CUDA_SUCCESS || out.silent) return out;
    out.no_vmm = devices_by(*loaded, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, false);
    out.unified = devices_by(*loaded, CU_DEVICE_ATTRIBUTE_INTEGRATED, true);
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
    struct stat status {};
    if (::stat(out.path.c_str(), &status) == 0) out.mode = status.st_mode & 07777;
    if (::stat(found->parent_path().c_str(), &status) == 0) out.folder_mode = status.st_mode & 07777;
    out.no_exec = is_mounted(out.path, ST_NOEXEC);
    out.not_carried = not_carried(*found, "LD_PRELOAD", kPreloadSeparators).value_or("");
    out.python_clash = python_clash(found->parent_path().parent_path().parent_path());  // of lib/curb/libcurb.so
    return out;
}

RuntimeCondition runtime_condition() {
    RuntimeCondition out;
    const control::Places places = control::places();
    out.xdg = places.xdg;
    out.passed_over = control::passed_over(places, ::geteuid());
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
    out.source = config::locate(::getenv);
    if (const auto reading = config::read(out.source))
        out.has_ceiling = reading->ceiling.has_value();
    else
        out.faults = reading.error();
    return out;
}

using control::field_in;
using control::proc_text;

constexpr auto kAnswerPatience = 1s;
constexpr int kMostGenerations = 16;

std::vector<std::string> words_of(std::string_view text) {
    std::istringstream words{std::string(text)};
    return {std::istream_iterator<std::string>(words), {}};
}

bool is_kernel_thread(int pid) {
    constexpr unsigned kKernelThread = 0x0020'0000;  // PF_KTHREAD, in the ninth field of proc(5)'s stat
    const std::string text = proc_text(pid, "stat");
    std::istringstream fields(text.substr(std::min(text.size(), text.rfind(')') + 1)));
    std::string skipped;
    unsigned flags = 0;
    for (int field = 3; field < 9; ++field) fields >> skipped;
    return (fields >> flags) && (flags & kKernelThread) != 0;
}

// Returns AT_SECURE of a 64-bit process.
bool is_secure(int pid) {
    const std::string vector = proc_text(pid, "auxv");
    for (std::size_t at = 0; at + sizeof(Elf64_auxv_t) <= vector.size(); at += sizeof(Elf64_auxv_t)) {
        Elf64_auxv_t entry{};
        vector.copy(reinterpret_cast<char *>(&entry), sizeof entry, at);
        if (entry.a_type == AT_SECURE) return entry.a_un.a_val != 0;
    }
    return false;
}

// The mapped libraries that doctor judges, each once, with its lowest address.
struct Libraries {
    std::vector<Mapped> curb, driver, tensorflow, glibc;
    bool readable = false;
};
Libraries libraries_of(int pid) {
    constexpr std::size_t kMost = 16;  // of one name: a program may map thousands of files
    constexpr std::string_view kDeleted = " (deleted)";
    Libraries out;
    const std::pair<std::string_view, std::vector<Mapped> *> kinds[] = {{"libcurb.so", &out.curb},
                                                                        {"libcuda.so", &out.driver},
                                                                        {"libtensorflow_framework.so", &out.tensorflow},
                                                                        {"libc.so.6", &out.glibc},
                                                                        {"libc-2.", &out.glibc}};  // before 2.34
    out.readable = control::each_line(pid, "maps", [&](std::string_view line) {
        const std::string_view file = policy::file_name(line);
        for (const auto &[name, kind] : kinds) {
            if (!file.starts_with(name) || kind->size() == kMost) continue;
            Mapped one{std::string(line.substr(std::min(line.find('/'), line.size()))), 0, line.ends_with(kDeleted)};
            if (one.deleted) one.path.resize(one.path.size() - kDeleted.size());
            std::from_chars(line.data(), line.data() + line.size(), one.begin, 16);
            if (std::none_of(kind->begin(), kind->end(), [&](const Mapped &known) { return known.path == one.path; }))
                kind->push_back(std::move(one));
        }
        return true;
    });
    return out;
}

// Returns the newest version of glibc that an ELF file names, 34 of 2.34: of libc its own version, of another library
// the version that it needs. Returns 0 if the file names none.
int newest_glibc(const std::string &path) {
    constexpr std::size_t kLargest = 64 << 20;  // glibc has 2 MiB
    const std::string text = read_regular_file(path, kLargest);
    constexpr std::string_view kVersion = "GLIBC_2.";
    int newest = 0;
    for (std::size_t at = text.find(kVersion); at != std::string::npos; at = text.find(kVersion, at + 1)) {
        int minor = 0;
        const char *digits = text.data() + at + kVersion.size();
        std::from_chars(digits, text.data() + text.size(), minor);
        newest = std::max(newest, minor);
    }
    return newest;
}

std::vector<Preloaded> preloaded_by(int pid, const std::string &preload, std::string_view by) {
    std::vector<Preloaded> out;
    for (std::size_t at = 0; at < preload.size();) {
        const std::size_t end = std::min(preload.find_first_of(" :\t\n", at), preload.size());
        Preloaded one{preload.substr(at, end - at), true, {}, by};
        at = end + 1;
        if (one.path.find("libcurb.so") == std::string::npos) continue;
        // curb does not search for a name without a path, and does not expand tokens ($ORIGIN), as the loader does.
        if (one.path.starts_with('/') && one.path.find('$') == std::string::npos) {
            const std::string as_it_sees_it = control::proc_path(pid, "root" + one.path);
            struct stat status {};
            one.there = ::stat(as_it_sees_it.c_str(), &status) == 0 || (errno != ENOENT && errno != ENOTDIR);
            one.elf = read_elf(as_it_sees_it);
            if (one.elf) one.glibc = newest_glibc(as_it_sees_it);
        }
        out.push_back(std::move(one));
    }
    return out;
}

// Returns the words of the process's /etc/ld.so.preload, without comments.
std::string preload_file_of(int pid) {
    constexpr std::size_t kLargest = 64 << 10;
    std::istringstream lines(read_regular_file(control::proc_path(pid, "root/etc/ld.so.preload"), kLargest));
    std::string out;
    for (std::string line; std::getline(lines, line);) out += line.substr(0, line.find('#')) + "\n";
    return out;
}

PreloadFile preload_file() {
    PreloadFile out;
    for (const Preloaded &one : preloaded_by(::getpid(), preload_file_of(::getpid()), kPreloadFile)) {
        out.names_curb = true;
        if (!one.there) out.missing = one.path;
    }
    return out;
}

std::string user_text(unsigned uid) {
    const passwd *entry = ::getpwuid(uid);
    return entry != nullptr ? entry->pw_name : "user " + std::to_string(uid);
}

// Returns the nearest ancestor that has a control socket and maps libcurb.so at the same address. The process is a fork
// of it: exec would have given the library another address (ASLR). Returns 0 if there is none.
int forked_from(const Target &target, const std::vector<Mapped> &curb, const std::vector<int> &with_socket) {
    if (curb.empty()) return 0;
    int above = target.parent;
    for (int generation = 0; generation < kMostGenerations && above > 1; ++generation) {
        if (const auto there = libraries_of(above).curb; there.empty() || there.front().begin != curb.front().begin)
            return 0;
        if (std::binary_search(with_socket.begin(), with_socket.end(), above)) return above;
        above = parent_of(above);
    }
    return 0;
}

// Returns the processes that hold GPU memory. nullopt if NVML does not list them.
std::optional<std::vector<int>> listed_by_nvml() {
    const auto gpus = nvml_gpus();
    if (!gpus || std::any_of(gpus->begin(), gpus->end(), [](const GpuState &gpu) { return !gpu.lists_processes; }))
        return std::nullopt;
    std::vector<int> out;
    for (const GpuUser *user : users_of(*gpus)) out.push_back(user->pid);
    return out;
}

// Returns why the process can make no folder for its control socket, nor a socket in the one that it has, as far as
// this user can see. Empty if it can.
std::string why_no_socket(const Target &target) {
    control::Places places;
    const auto &environment = target.environment;
    if (!environment || ::access(control::proc_path(target.process.pid, "root/").c_str(), X_OK) != 0) return {};
    if (const auto xdg = environment->find("XDG_RUNTIME_DIR"); xdg != environment->end()) places.xdg = xdg->second;
    std::string out;
    for (const control::Folder &folder : control::folders_of(places, target.process.uid)) {
        const fs::path path(folder.path);
        const bool is_named = path == places.xdg + "/curb";
        if (folder.path.starts_with(places.run_user) && !is_named) continue;  // it makes none there
        const auto fault = [&](const fs::path &of) {
            const std::string seen = control::proc_path(target.process.pid, "root" + of.string());
            return ::faccessat(AT_FDCWD, seen.c_str(), W_OK | X_OK, AT_EACCESS) == 0 ? 0 : errno;
        };
        const int own = fault(path), why = own == ENOENT ? fault(path.parent_path()) : own;
        if (why == 0) return {};
        if (control::is_spare(folder) || (own == ENOENT && why == ENOENT && path.parent_path() == places.run)) continue;
        out += (out.empty() ? "" : "; ") + (own == ENOENT ? path.parent_path() : path).string() + ": " +
               std::strerror(why);
    }
    return out;
}

void ask(ProcessCondition &facts, const Target &target) {
    auto status =
        report_in<control::Status>(facts.pid, control::ask(facts.pid, control::StatusRequest{true}, kAnswerPatience));
    if (status) {
        facts.status = std::move(status).value();
        if (facts.status->nap)
            facts.suspended = facts.status->nap->out || (facts.suspended && !facts.status->nap->leaving);
        return;
    }
    facts.silence = status.error();
    const std::vector<int> with_socket = control::processes();
    facts.has_socket = std::binary_search(with_socket.begin(), with_socket.end(), facts.pid);
    facts.forked_from = forked_from(target, facts.curb, with_socket);
    if (!facts.has_socket) facts.no_socket = why_no_socket(target);
}

}  // namespace

MachineCondition inspect_machine() {
    MachineCondition out;
    out.driver = driver_condition();
    out.nvml = nvml_gpus();
    out.driver.version = nvml_driver_version();
    out.library = library_condition();
    out.installations = installations();
    out.preload_file = preload_file();
    out.runtime = runtime_condition();
    out.policy = policy_condition();
    out.view = poll_all(kProcessesPatience);
    return out;
}

namespace {

// Fills in who the process is and whether it runs. False if there is nothing more to see.
bool note_identity(ProcessCondition &facts, const Target &target) {
    const int pid = facts.pid;
    facts.name = "process " + target.text();
    const std::string status = proc_text(pid, "status");
    const std::string_view state = field_in(status, "State:");
    const auto users = words_of(field_in(status, "Uid:")), pids = words_of(field_in(status, "NSpid:"));
    facts.ended = state.starts_with('Z') || state.starts_with('X');
    facts.stopped = control::is_stopped(status);
    // /proc may hide a process of another user (hidepid).
    const bool hidden = status.empty() && ::kill(pid, 0) != 0 && errno == EPERM;
    facts.suspended = is_suspended(target.process);
    facts.there = facts.ended || target.process.start != 0 || hidden;
    facts.thread_of = target.thread_of;
    facts.owner = hidden ? ~0U : target.process.uid;
    facts.owner_name = hidden ? "another user" : user_text(facts.owner);
    if (!facts.there || facts.ended || facts.thread_of != 0 || hidden) return false;
    facts.acts_as = users.size() > 1 ? static_cast<unsigned>(policy::whole_number(users[1]).value_or(0)) : facts.owner;
    if (pids.size() > 1) facts.inner_pid = policy::whole_number(pids.back()).value_or(0);
    facts.kernel_thread = is_kernel_thread(pid);
    return !facts.kernel_thread;
}

// Fills in what the variables name that matter to curb.
void note_environment(ProcessCondition &facts, const std::map<std::string, std::string> &environment) {
    std::vector<const char *> names{"CURB_POLICY", "CURB_CAP", "CURB_JOB_CAP", "CURB_SIGNAL"};
    for (const policy::FlagRow &row : policy::flags()) names.push_back(row.variable);
    const auto set =
        std::find_if(names.begin(), names.end(), [&](const char *name) { return environment.contains(name); });
    if (set != names.end()) facts.has_settings = *set;
    const auto preload = environment.find("LD_PRELOAD");
    if (preload == environment.end()) return;
    facts.preload = preload->second;
    facts.preloaded = preloaded_by(facts.pid, preload->second, "LD_PRELOAD");
}

}  // namespace

ProcessCondition inspect_process(int pid) {
    ProcessCondition facts;
    facts.pid = pid;
    facts.now = control::unix_now();
    facts.user = ::geteuid();
    facts.version = CURB_VERSION;
    const Target target = inspect(pid, false);
    if (!note_identity(facts, target)) return facts;
    Libraries mapped = libraries_of(pid);
    facts.readable = mapped.readable && target.environment.has_value();
    facts.curb = std::move(mapped.curb);
    facts.driver = std::move(mapped.driver);
    facts.tensorflow = std::move(mapped.tensorflow);
    facts.program = read_elf(control::proc_path(pid, "exe"));
    if (const auto library = find_library()) facts.library = read_elf(library->string());
    facts.secure = is_secure(pid);
    if (target.environment) note_environment(facts, *target.environment);
    for (Preloaded &one : preloaded_by(pid, preload_file_of(pid), kPreloadFile))
        facts.preloaded.push_back(std::move(one));
    if (!mapped.glibc.empty()) facts.glibc = newest_glibc(control::proc_path(pid, "root" + mapped.glibc.front().path));
    ask(facts, target);
    facts.listed = listed_by_nvml();
    return facts;
}

}  // namespace curb::cli
