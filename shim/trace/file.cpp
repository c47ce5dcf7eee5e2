#include "trace/file.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace curb::shim::trace {
namespace {

std::string named(const std::string &path) { return "trace.file \"" + path + "\""; }

std::string cannot_be_made(const std::string &path, const std::string &why) {
    return named(path) + ": " + why +
           "; no trace is written. Name another file in the policy, or fix that and edit the policy";
}

}  // namespace

bool leave_programs_descriptors() noexcept {
#ifdef CURB_ONE_DESCRIPTOR_TABLE
    return false;
#else
    // Not by close_range() and SYS_close_range, which glibc has since 2.34.
    if (syscall(__NR_close_range, 0U, ~0U, CLOSE_RANGE_UNSHARE) == 0) return true;
    if (unshare(CLONE_FILES) != 0) return false;
    // Close all descriptors in our copy: they would keep the program's pipes and sockets open after the program has
    // closed them. (closedir closes the folder's own.)
    DIR *folder = opendir("/proc/thread-self/fd");
    if (!folder) return true;
    while (const dirent *entry = readdir(folder)) {
        const int fd = std::atoi(entry->d_name);
        if (*entry->d_name != '.' && fd != dirfd(folder)) close(fd);
    }
    closedir(folder);
    return true;
#endif
}

policy::Result<File, std::string> File::make(const std::string &path) {
    struct stat status {};
    if (lstat(path.c_str(), &status) == 0) {
        if (!S_ISREG(status.st_mode)) return cannot_be_made(path, "it is there and is not a regular file");
        if (unlink(path.c_str()) != 0)
            return cannot_be_made(path,
                                  std::string("the file that is there cannot be replaced: ") + std::strerror(errno));
    }
    const int opened = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (opened < 0) return cannot_be_made(path, std::strerror(errno));
    const int fd = control::above_standard(opened);
    if (fd < 0) return cannot_be_made(path, std::strerror(errno));
    File out;
    out.descriptor_ = control::Descriptor(fd);
    out.path_ = path;
    return out;
}

const char *File::what_others_did() const noexcept {
    struct stat status {};
    if (!descriptor_.ours() || fstat(descriptor_.number(), &status) != 0)
        return "its descriptor was closed by the program";
    if (status.st_nlink == 0) return "the file was removed or replaced";
    if (static_cast<std::uint64_t>(status.st_size) != bytes_) return "the file was changed by others";
    return nullptr;
}

File::Appended File::append(std::string_view lines) {
    if (const char *why = what_others_did())
        return {0, named(path_) + ": " + why + "; the trace has ended. An edit of the policy begins it anew", true};
    std::size_t written = 0;
    while (written < lines.size()) {
        const ssize_t some = write(descriptor_.number(), lines.data() + written, lines.size() - written);
        if (some < 0 && errno == EINTR) continue;
        if (some <= 0) break;
        written += static_cast<std::size_t>(some);
    }
    if (written == lines.size()) {
        bytes_ += written;
        return {written, {}, false};
    }
    const int error = errno;
    const std::size_t newline = lines.substr(0, written).rfind('\n');
    const std::size_t whole = newline == std::string_view::npos ? 0 : newline + 1;
    bytes_ += whole;
    // If the file cannot be truncated, it ends with a part of a line, and nothing may follow that.
    const bool cut = written == whole || ftruncate(descriptor_.number(), static_cast<off_t>(bytes_)) == 0;
    return {whole, named(path_) + ": " + std::strerror(error) + "; events are dropped until it can be written again",
            !cut};
}

}  // namespace curb::shim::trace
