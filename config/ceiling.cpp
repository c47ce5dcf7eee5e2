#include "ceiling.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "file.hpp"
#include "policy/values/words.hpp"

namespace curb::config {
namespace {

constexpr const char *kUntrusted = ", so the ceiling cannot be trusted; as root: ";

// True if the owner is the machine's root. In a user namespace (rootless containers), the machine's root and
// all other owners without a number there show as the overflow uid (user_namespaces(7)). Their files are trusted too: a
// user who can replace the file there can also run without curb.
bool is_root(uid_t owner) {
    if (owner == 0) return true;
    const File map("/proc/self/uid_map"), overflow("/proc/sys/kernel/overflowuid");
    const auto ids = text_of(map, "uid_map"), number = text_of(overflow, "overflowuid");
    if (!ids || !number) return false;
    const bool maps_all = ids->find(" 4294967295") != std::string::npos;
    return !maps_all && policy::whole_number<uid_t>(std::string_view(*number).substr(0, number->find('\n'))) == owner;
}

// Returns why others than root can change the file. Empty if they cannot. In a directory with the sticky bit they can
// only add files of their own.
std::string why_not_trusted(const File &file, const std::string &path, bool directory) {
    const std::string what = directory ? "the directory of the machine's ceiling" : "the machine's ceiling";
    struct stat status {};
    if (file.fd() < 0 || ::fstat(file.fd(), &status) != 0)
        return what + " cannot be examined" + kUntrusted + "chmod 755 " + path;
    if (!is_root(status.st_uid)) return what + " does not belong to root" + kUntrusted + "chown root " + path;
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
        return unread(path, "the machine's ceiling is a symbolic link to nothing; as root: fix or remove it");
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
