#include "suspend/companion.hpp"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "control/proc.hpp"

namespace curb::cli {
namespace {

namespace fs = std::filesystem;

// Returns device and inode, "08:01 1234", of each file in /dev/shm and each memfd that the process maps shared and
// writable. nullopt if /proc does not show them.
std::optional<std::set<std::string>> shared_files(int pid) {
    std::set<std::string> out;
    const bool readable = control::each_line(pid, "maps", [&](std::string_view line) {
        if (line.find(" /dev/shm/") == std::string_view::npos && line.find(" /memfd:") == std::string_view::npos)
            return true;
        std::istringstream words{std::string(line)};
        std::string range, permissions, offset, device, inode, path;
        words >> range >> permissions >> offset >> device >> inode >> path;
        const bool is_memory = path.starts_with("/dev/shm/") || path.starts_with("/memfd:");
        if (is_memory && permissions.starts_with("rw") && permissions.ends_with('s')) out.insert(device + ' ' + inode);
        return true;
    });
    return readable ? std::optional(std::move(out)) : std::nullopt;
}

// Returns the inodes of the process's open sockets. nullopt if /proc does not show them.
std::optional<std::set<std::string>> sockets_of(int pid) {
    constexpr std::string_view kSocket = "socket:[";
    std::error_code error;
    std::set<std::string> out;
    for (fs::directory_iterator entry(control::proc_path(pid, "fd"), error), end; !error && entry != end;
         entry.increment(error)) {
        std::error_code closed;
        const std::string to = fs::read_symlink(entry->path(), closed).native();
        if (to.starts_with(kSocket)) out.insert(to.substr(kSocket.size(), to.size() - kSocket.size() - 1));
    }
    return error ? std::nullopt : std::optional(std::move(out));
}

using Connection = std::pair<std::string, std::string>;  // local and remote address, as the kernel prints them

// Returns the process's TCP connections. Source: /proc/PID/net/tcp and tcp6.
std::set<Connection> connections(int pid, const std::set<std::string> &sockets) {
    std::set<Connection> out;
    for (const char *table : {"net/tcp", "net/tcp6"}) {
        control::each_line(pid, table, [&](std::string_view line) {
            constexpr std::size_t kLocal = 1, kRemote = 2, kInode = 9;
            std::istringstream words{std::string(line)};
            std::vector<std::string> fields;
            for (std::string word; words >> word;) fields.push_back(word);
            if (fields.size() > kInode && sockets.contains(fields[kInode]))
                out.emplace(fields[kLocal], fields[kRemote]);
            return true;
        });
    }
    return out;
}

}  // namespace

bool in_touch(int one, int other) {
    const auto files = shared_files(one), other_files = shared_files(other);
    const auto sockets = sockets_of(one), other_sockets = sockets_of(other);
    if (!files || !other_files || !sockets || !other_sockets) return true;
    if (std::any_of(files->begin(), files->end(), [&](const auto &file) { return other_files->contains(file); }))
        return true;
    const auto ours = connections(one, *sockets), theirs = connections(other, *other_sockets);
    return std::any_of(ours.begin(), ours.end(), [&](const Connection &to) {
        return theirs.contains({to.second, to.first});
    });
}

int companion_of(const Target &target, const std::vector<GpuState> &gpus) {
    if (target.executable.empty() || inspect(target.parent, false).executable != target.executable) return 0;
    for (const GpuState &gpu : gpus)
        for (const GpuUser &user : gpu.users)
            if (user.pid != target.process.pid && parent_of(user.pid) == target.parent &&
                in_touch(target.process.pid, user.pid))
                return user.pid;
    return 0;
}

}  // namespace curb::cli
