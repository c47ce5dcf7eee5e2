#include "ceiling.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <cerrno>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "file.hpp"

namespace curb::config {
namespace {

constexpr const char *kUntrusted = ", so the ceiling cannot be trusted; as root: ";

// True if the file belongs to a user whom this user namespace does not map, and the mount is read-only: so a container
// without root's own numbers (rootless, userns-remap, hostUsers: false) sees a ceiling that was mounted from outside. A
// process within may have the same number, which is shown for all such users, but nobody within can change the file.
bool is_fixed_outside(const File &file, const struct stat &status) {
    // The text without blanks.
    const auto read = [](const char *path) {
        auto text = text_of(File(path), path);
        if (text) std::erase_if(text.value(), [](char c) { return c == ' ' || c == '\n'; });
        return text ? text.value() : std::string();
    };
    constexpr const char *kAllUsers = "004294967295";  // of the machine's own namespace, where it is a user like others
    const std::string map = read("/proc/self/uid_map");
    struct statvfs mount {};
    return !map.empty() && map != kAllUsers && std::to_string(status.st_uid) == read("/proc/sys/kernel/overflowuid") &&
           ::fstatvfs(file.fd(), &mount) == 0 && (mount.f_flag & ST_RDONLY) != 0;
}

// Returns why others than root can change the file. Empty if they cannot. In a directory with the sticky bit they can
// only add files of their own.
std::string why_not_trusted(const File &file, const std::string &path, bool directory) {
    const std::string what = directory ? "the directory of the machine's ceiling" : "the machine's ceiling";
    struct stat status {};
    if (file.fd() < 0 || ::fstat(file.fd(), &status) != 0)
        return what + " cannot be examined" + kUntrusted + "chmod 755 " + path;
    if (status.st_uid != 0 && !is_fixed_outside(file, status))
        return what + " does not belong to root" + kUntrusted + "chown root " + path;
    const bool sticky = directory && (status.st_mode & S_ISVTX) != 0;
    if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0 && !sticky)
        return what + " is writable by others than root" + kUntrusted + "chmod go-w " + path;
    return {};
}

std::string why_not_trusted(const std::string &directory) {
    return why_not_trusted(File(directory, O_PATH | O_DIRECTORY), directory, true);
}

bool is_symlink(const std::string &path) {
    struct stat status {};
    return ::lstat(path.c_str(), &status) == 0 && S_ISLNK(status.st_mode);
}

}  // namespace

policy::Result<std::optional<std::string>, Diagnostic> read_ceiling(const std::string &path) {
    const File file(path);
    if (file.error() == ENOENT) {
        if (!is_symlink(path)) return std::optional<std::string>();
        return unread(path, "the machine's ceiling is a symbolic link to nothing; as root: mend or remove it");
    }
    if (file.error() == EACCES || file.error() == EPERM) {
        return unread(path,
                      "the machine's ceiling may not be read by this user, who must keep to it; as root: chmod 644 " +
                          path + " and chmod 755 " + directory_of(path));
    }
    if (file.fd() < 0) return unread(path, "the machine's ceiling: " + why_not_opened(file.error()));

    // Checks the path, and the target of a symbolic link.
    const std::unique_ptr<char, decltype(&std::free)> target(::realpath(path.c_str(), nullptr), &std::free);
    if (!target) return unread(path, "the machine's ceiling was replaced while it was read");
    std::string why = why_not_trusted(file, path, false);
    if (why.empty()) why = why_not_trusted(directory_of(path));
    if (why.empty()) why = why_not_trusted(directory_of(target.get()));
    if (!why.empty()) return unread(path, std::move(why));

    auto text = text_of(file, path);
    if (!text) return text.error();
    return std::optional(std::move(text).value());
}

}  // namespace curb::config
