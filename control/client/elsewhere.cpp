#include "elsewhere.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <sstream>
#include <utility>

#include "control/proc.hpp"
#include "policy/values/words.hpp"

namespace curb::control {
namespace {

// Returns the inode of a namespace. 0 if this process may not inspect it.
ino_t namespace_of(const std::string &process, const char *kind) {
    struct stat status {};
    return ::stat(("/proc/" + process + "/ns/" + kind).c_str(), &status) == 0 ? status.st_ino : 0;
}

bool has_other_mounts(int pid) {
    static const ino_t ours = namespace_of("self", "mnt");
    const ino_t its = namespace_of(std::to_string(pid), "mnt");
    return its != 0 && its != ours;
}
bool has_other_pids(int pid) {
    static const ino_t ours = namespace_of("self", "pid");
    const ino_t its = namespace_of(std::to_string(pid), "pid");
    return its != 0 && its != ours;
}

// Returns the user's number in the process's user namespace.
uid_t inner_user(int pid, uid_t user) {
    std::istringstream map(proc_text(pid, "uid_map"));
    for (std::uint64_t inside = 0, outside = 0, length = 0; map >> inside >> outside >> length;)
        if (user >= outside && user - outside < length) return static_cast<uid_t>(inside + (user - outside));
    return user;
}

// Opens a folder under this root. Follows no link out of it. Needs Linux 5.6.
int open_in_root(int root, const std::string &path) {
    open_how how{};
    how.flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
    how.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS;
    // glibc has SYS_openat2 since 2.32.
    return static_cast<int>(::syscall(__NR_openat2, root, path.c_str(), &how, sizeof how));
}

}  // namespace

std::string runtime_directory_of(int pid) {
    std::istringstream environment(proc_text(pid, "environ", kMostOfEnvironment));
    constexpr std::string_view kName = "XDG_RUNTIME_DIR=";
    for (std::string variable; std::getline(environment, variable, '\0');)
        if (variable.starts_with(kName)) return variable.substr(kName.size());
    return {};
}

std::vector<InnerSocket> sockets_inside(int pid, bool shares_folder) {
    std::vector<InnerSocket> out;
    if (!has_other_mounts(pid) && !(shares_folder && has_other_pids(pid))) return out;
    const auto owner = owner_of(pid);
    const auto process = name_of(pid);
    if (!owner || !process) return out;
    const Descriptor root(::open(proc_path(pid, "root").c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!root) return out;
    const std::string name = socket_name({innermost_pid(pid, proc_text(pid, "status")), process->start});
    for (const Folder &folder : folders_of({.xdg = runtime_directory_of(pid)}, inner_user(pid, *owner))) {
        auto open = std::make_shared<const Descriptor>(open_in_root(root.number(), folder.path));
        struct stat of_folder {
        }, of_socket{};
        if (!*open || ::fstat(open->number(), &of_folder) != 0 || of_folder.st_uid != *owner ||
            (of_folder.st_mode & 07777) != 0700 ||
            ::fstatat(open->number(), name.c_str(), &of_socket, AT_SYMLINK_NOFOLLOW) != 0 ||
            !S_ISSOCK(of_socket.st_mode))
            continue;
        out.push_back({pid, {"/proc/self/fd/" + std::to_string(open->number()), *owner}, name, std::move(open)});
    }
    return out;
}

std::vector<InnerSocket> sockets_elsewhere(bool share_folders) {
    std::vector<InnerSocket> out;
    DIR *all = ::opendir("/proc");
    if (!all) return out;
    std::vector<int> pids;
    while (const dirent *entry = ::readdir(all))
        if (const auto pid = policy::whole_number<int>(entry->d_name)) pids.push_back(*pid);
    ::closedir(all);
    for (const int pid : pids)
        for (InnerSocket &one : sockets_inside(pid, share_folders)) out.push_back(std::move(one));
    return out;
}

}  // namespace curb::control
