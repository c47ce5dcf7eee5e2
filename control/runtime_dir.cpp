// Runs in capped processes too: each descriptor is checked before it is closed (descriptor.hpp).
#include "control/runtime_dir.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <utility>

#include "client/connect.hpp"
#include "control/descriptor.hpp"
#include "control/proc.hpp"
#include "policy/values/words.hpp"
#include "process_stat.hpp"

namespace curb::control {
namespace {

constexpr std::string_view kSuffix = ".sock";
constexpr std::string_view kUnfinished = ".new";
constexpr std::size_t kLongestName = 10 + 1 + 20 + kSuffix.size() + kUnfinished.size();
constexpr std::size_t kLookedAtOnce = 32;
constexpr std::time_t kUnfinishedForAtMost = 60;  // seconds; it takes microseconds
constexpr std::string_view kSpares = "123456789";

std::string user_text(uid_t user) { return "user " + std::to_string(user); }
std::string of_run_user(const Places &places, uid_t user) {
    return places.run_user + "/" + std::to_string(user) + "/curb";
}
std::string of_run(const Places &places, uid_t user) { return places.run + "/" + std::to_string(user); }
std::string of_tmp(const Places &places, uid_t user) { return places.tmp + "/curb-" + std::to_string(user); }

constexpr mode_t kPublic = 0755;
constexpr std::string_view kPublicInTmp = "curb-public-";
std::string public_in_run(const Places &places) { return places.run + "/public"; }

void add(std::vector<Folder> &all, std::string path, uid_t owner) {
    Folder folder{std::move(path), owner};
    if (std::find(all.begin(), all.end(), folder) == all.end()) all.push_back(std::move(folder));
}

// Returns why files of `user` are not safe below this folder. Empty if they are. `shared`: it may be root's, as /tmp.
std::string parent_fault(const std::string &folder, uid_t user, bool shared) {
    struct stat status {};
    if (!folder.starts_with('/')) return folder + ": it is not an absolute path";
    if (::stat(folder.c_str(), &status) != 0) return folder + ": " + std::strerror(errno);
    if (!S_ISDIR(status.st_mode)) return folder + ": it is not a folder";
    // sudo and su may leave the XDG_RUNTIME_DIR of another user.
    if (status.st_uid != user && !(shared && status.st_uid == 0))
        return folder + ": it belongs to " + user_text(status.st_uid) + ", not to " + user_text(user);
    if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0 && (status.st_mode & S_ISVTX) == 0)
        return folder + ": others may rename what is in it; chmod +t " + folder;
    return {};
}

// Returns why this folder is not its owner's own, or not closed to others. Empty if it is both.
std::string fault(const Folder &of, const struct stat &status) {
    const std::string &folder = of.path;
    const uid_t user = of.owner;
    if (status.st_uid != user)
        return folder + ": it belongs to " + user_text(status.st_uid) + ", not to " + user_text(user) +
               ", and only that user or root can remove it";
    if (S_ISLNK(status.st_mode)) return folder + ": it is a symbolic link; remove it";
    if (!S_ISDIR(status.st_mode)) return folder + ": it is not a folder; remove it";
    if ((status.st_mode & 07777) == of.mode) return {};
    return folder +
           (of.mode == kPublic ? ": its mode is not 755; chmod 755 " : ": it is not closed to others; chmod 700 ") +
           folder;
}

// Makes the folder if it is missing. Returns why it cannot be used. Empty if it can.
std::string made(const Folder &of) {
    const std::string &folder = of.path;
    if (folder.size() + 1 + kLongestName > kLongestPath)
        return folder + ": the path is too long for a socket in it; set XDG_RUNTIME_DIR to a shorter one";
    if (::mkdir(folder.c_str(), of.mode) != 0 && errno != EEXIST) return folder + ": " + std::strerror(errno);
    struct stat status {};
    if (::lstat(folder.c_str(), &status) != 0) return folder + ": " + std::strerror(errno);
    // A umask can take away the owner's own rights, here or in another process of the user. No other user can have put
    // something in its place: the folder above belongs to the user, or is sticky.
    const bool has_less = S_ISDIR(status.st_mode) && status.st_uid == of.owner &&
                          (status.st_mode & 07777 & ~of.mode) == 0 && (status.st_mode & 07777) != of.mode;
    if (has_less && ::chmod(folder.c_str(), of.mode) == 0) status.st_mode |= of.mode;
    return fault(of, status);
}

// The folder that runtime_directory() or public_directory() takes, and the faults of those before it.
struct Choice {
    std::optional<Folder> folder{};
    std::string faults{};

    static Choice of_private(const Places &places, uid_t user) {
        Choice out;
        if (!places.xdg.empty() && out.takes(places.xdg, {places.xdg + "/curb", user}, false)) return out;
        out.take_shared(places.run, {of_run(places, user), user}, places.tmp, {of_tmp(places, user), user});
        return out;
    }
    static Choice of_public(const Places &places, uid_t user) {
        Choice out;
        const std::string number = std::to_string(user), parent = public_in_run(places);
        out.take_shared(parent, {parent + "/" + number, user, kPublic}, places.tmp,
                        {places.tmp + "/" + std::string(kPublicInTmp) + number, user, kPublic});
        return out;
    }

  private:
    void take_shared(const std::string &run, Folder in_run, const std::string &tmp, const Folder &in_tmp) {
        struct stat status {};
        if (::stat(run.c_str(), &status) == 0 && takes(run, std::move(in_run), true)) return;
        if (takes(tmp, in_tmp, true)) return;
        const std::string before = faults;  // those of the spares are alike
        for (const char spare : kSpares) {
            if (!takes(tmp, {in_tmp.path + "." + spare, in_tmp.owner, in_tmp.mode}, true)) continue;
            faults = before;
            return;
        }
        faults = before + "; nor can " + in_tmp.path + ".1 to ." + kSpares.back();
    }
    bool takes(const std::string &parent, Folder one, bool shared) {
        std::string trouble = parent_fault(parent, one.owner, shared);
        if (trouble.empty()) trouble = made(one);
        if (!trouble.empty()) faults += (faults.empty() ? "" : "; ") + trouble;
        if (trouble.empty()) folder = std::move(one);
        return trouble.empty();
    }
};

policy::Result<Folder, std::string> result_of(Choice choice) {
    if (choice.folder) return *std::move(choice.folder);
    return std::move(choice.faults);
}

// Adds the folders below `parent` whose names are `prefix` and their owner's number, with a spare's ending or without.
// `below`: the folder within. Leaves out those on file systems of users.
void add_below(std::vector<Folder> &out, const std::vector<std::string> &fuse, const std::string &parent,
               std::string_view prefix, const std::string &below, mode_t mode) {
    if (is_below(fuse, parent)) return;
    const Descriptor all(above_standard(::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)));
    names_in(all, [&](const std::string &name) {
        if (!name.starts_with(prefix)) return false;
        std::string_view number = std::string_view(name).substr(prefix.size());
        if (is_spare({name, 0})) number.remove_suffix(2);
        const auto owner = policy::whole_number<uid_t>(number);
        Folder one{parent + "/" + name + below, owner.value_or(0), mode};
        struct stat status {};
        if (!owner || is_below(fuse, parent + "/" + name) || is_below(fuse, one.path)) return false;
        if (::fstatat(all.number(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 && status.st_uid == *owner &&
            std::find(out.begin(), out.end(), one) == out.end())
            out.push_back(std::move(one));
        return false;
    });
}

Descriptor opened(const Folder &folder) {
    auto out = open_folder(folder, false);
    return out ? std::move(out).value() : Descriptor();
}

// True if /proc shows that the process runs. One of another pid namespace may run without that.
bool runs(const ProcessName &process) {
    const auto stat = stat_of(process.pid);
    return stat && stat->start == process.start && !stat->has_ended();
}

}  // namespace

Places places() {
    Places out;
    const char *xdg = ::getauxval(AT_SECURE) != 0 ? nullptr : ::getenv("XDG_RUNTIME_DIR");
    if (xdg != nullptr) out.xdg = xdg;
    return out;
}

policy::Result<Folder, std::string> runtime_directory(const Places &places, uid_t user) {
    return result_of(Choice::of_private(places, user));
}
policy::Result<Folder, std::string> public_directory(const Places &places, uid_t user) {
    return result_of(Choice::of_public(places, user));
}

std::string passed_over(const Places &places, uid_t user) {
    std::string out = Choice::of_private(places, user).faults;
    const std::string of_board = Choice::of_public(places, user).faults;
    return out + (out.empty() || of_board.empty() ? "" : "; ") + of_board;
}

bool is_spare(const Folder &folder) {
    const std::string_view name = policy::file_name(folder.path);
    return name.size() > 2 && name[name.size() - 2] == '.' && kSpares.find(name.back()) != std::string_view::npos;
}

policy::Result<Descriptor, std::string> open_folder(const Folder &folder, bool make) {
    std::string trouble = make ? made(folder) : std::string();
    if (!trouble.empty()) return trouble;
    Descriptor out(above_standard(::open(folder.path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)));
    struct stat status {};
    if (!out || ::fstat(out.number(), &status) != 0) return folder.path + ": " + std::strerror(errno);
    trouble = fault(folder, status);
    if (!trouble.empty()) return trouble;
    return out;
}

std::vector<Folder> folders_of(const Places &places, uid_t user) {
    std::vector<Folder> out;
    if (places.xdg.starts_with('/')) add(out, places.xdg + "/curb", user);
    add(out, of_run_user(places, user), user);
    add(out, of_run(places, user), user);
    add(out, of_tmp(places, user), user);
    for (const char spare : kSpares) add(out, of_tmp(places, user) + "." + spare, user);
    return out;
}

std::vector<std::string> fuse_of_users() {
    // "98 24 0:43 / /run/user/1000/x rw,nosuid - fuse.sshfs host:/ rw,user_id=1000,group_id=1000"
    std::vector<std::string> out;
    each_line(::getpid(), "mountinfo", [&](std::string_view line) {
        constexpr std::string_view kUser = "user_id=";
        const std::size_t type = line.find(" - fuse"), user = line.rfind(kUser);
        if (type == std::string_view::npos || user == std::string_view::npos || user < type) return true;
        if (line.substr(user + kUser.size()).starts_with("0,")) return true;
        for (int field = 0; field < 4; ++field) line.remove_prefix(line.find(' ') + 1);
        out.emplace_back(line.substr(0, line.find(' ')));
        return true;
    });
    return out;
}

bool is_below(const std::vector<std::string> &mounts, const std::string &path) {
    return std::any_of(mounts.begin(), mounts.end(),
                       [&](const std::string &one) { return (path + "/").starts_with(one + "/"); });
}

std::vector<Folder> folders(const Places &places, uid_t user) {
    std::vector<Folder> out = folders_of(places, user);
    if (user != 0) return out;
    const std::vector<std::string> fuse = fuse_of_users();
    // Any user can make folders in /tmp with the names of others.
    add_below(out, fuse, places.run_user, "", "/curb", 0700);
    add_below(out, fuse, places.run, "", "", 0700);
    add_below(out, fuse, places.tmp, "curb-", "", 0700);
    return out;
}

std::vector<Folder> public_folders(const Places &places) {
    const std::vector<std::string> fuse = fuse_of_users();
    std::vector<Folder> out;
    add_below(out, fuse, public_in_run(places), "", "", kPublic);
    add_below(out, fuse, places.tmp, kPublicInTmp, "", kPublic);
    return out;
}

std::optional<ProcessName> name_of(int pid) {
    const auto stat = stat_of(pid);
    if (!stat) return std::nullopt;
    return ProcessName{pid, stat->start};
}

bool first_thread_has_ended(int pid) noexcept {
    const auto stat = stat_of(pid);
    return stat && (stat->state == 'Z' || stat->state == 'X');
}

std::string socket_name(const ProcessName &process) {
    return std::to_string(process.pid) + "-" + std::to_string(process.start) + std::string(kSuffix);
}

std::optional<ProcessName> parse_socket_name(std::string_view name) {
    if (!name.ends_with(kSuffix)) return std::nullopt;
    name.remove_suffix(kSuffix.size());
    const std::size_t dash = name.find('-');
    if (dash == std::string_view::npos) return std::nullopt;
    const auto pid = policy::whole_number<int>(name.substr(0, dash));
    const auto start = policy::whole_number<std::uint64_t>(name.substr(dash + 1));
    if (!pid || *pid <= 0 || !start) return std::nullopt;
    return ProcessName{*pid, *start};
}

std::string unfinished(const std::string &socket_name) { return socket_name + std::string(kUnfinished); }

std::vector<std::string> names_in(const Descriptor &folder, const std::function<bool(const std::string &)> &keep) {
    std::vector<std::string> out;
    ::lseek(folder.number(), 0, SEEK_SET);
    alignas(dirent64) std::array<char, 8192> block;
    while (folder.ours()) {
        // glibc has getdents64() since 2.30.
        const long got = ::syscall(SYS_getdents64, folder.number(), block.data(), block.size());
        if (got <= 0) break;
        for (long at = 0; at < got;) {
            const auto *entry = reinterpret_cast<const dirent64 *>(block.data() + at);
            std::string name = entry->d_name;
            if (keep(name)) out.push_back(std::move(name));
            if (out.size() == kMostNames) return out;
            at += entry->d_reclen;
        }
    }
    return out;
}

std::vector<std::string> sockets_in(const Folder &folder) {
    return names_in(opened(folder), [](const std::string &name) { return parse_socket_name(name).has_value(); });
}

std::vector<std::string> unfinished_in(const Folder &folder) {
    const Descriptor directory = opened(folder);
    return names_in(directory, [&](std::string_view name) {
        if (!name.ends_with(kUnfinished) || !parse_socket_name(name.substr(0, name.size() - kUnfinished.size())))
            return false;
        struct stat status {};
        return ::fstatat(directory.number(), name.data(), &status, AT_SYMLINK_NOFOLLOW) == 0 &&
               ::time(nullptr) - status.st_mtime >= kUnfinishedForAtMost;
    });
}

void remove_socket(const Folder &folder, const std::string &name) {
    const Descriptor directory = opened(folder);
    const auto inode = [&]() -> ino_t {
        struct stat status {};
        const bool is_there =
            directory && ::fstatat(directory.number(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0;
        return is_there && S_ISSOCK(status.st_mode) ? status.st_ino : 0;
    };
    const ino_t seen = inode();
    int error = 0;
    if (seen == 0 || connect_to(folder.path + "/" + name, folder.owner, error) || error != ECONNREFUSED ||
        inode() != seen)
        return;
    ::unlinkat(directory.number(), name.c_str(), 0);
}

void remove_stale(const Folder &folder) {
    for (const std::string &name : unfinished_in(folder)) remove_socket(folder, name);
    const std::vector<std::string> names = sockets_in(folder);
    if (names.empty()) return;
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    const auto first = static_cast<std::size_t>(now.tv_nsec) % names.size();
    for (std::size_t i = 0; i < std::min(names.size(), kLookedAtOnce); ++i) {
        const std::string &name = names[(first + i) % names.size()];
        if (!runs(*parse_socket_name(name))) remove_socket(folder, name);
    }
}

}  // namespace curb::control
