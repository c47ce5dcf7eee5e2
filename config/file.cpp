#include "file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "parse/diagnostic.hpp"

namespace curb::config {

File::File(const std::string &path, int flags) : fd_(-1), error_(0) {
    // O_NONBLOCK: opening a FIFO must not wait for a writer.
    do fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | flags);
    while (fd_ < 0 && errno == EINTR);
    if (fd_ < 0) error_ = errno;
}

File::~File() {
    if (fd_ >= 0) ::close(fd_);
}

Diagnostic unread(const std::string &path, std::string message) { return {path, 0, 0, {}, std::move(message), true}; }

std::string why_not_opened(int error) {
    switch (error) {
        case ENOENT: return "there is no such file; check the path, in the command or in CURB_POLICY";
        case EACCES:
        case EPERM: return "it may not be read by this user; change its mode or that of a directory on its path";
        case ENOTDIR: return "a part of its path is not a directory";
        case ELOOP: return "its symbolic links lead in a circle";
        case ENXIO:
        case ENODEV: return "it is not a regular file; copy the policy into one";
        default: return std::string("it cannot be opened: ") + std::strerror(error);
    }
}

bool is_own(const struct stat &status) { return status.st_uid == ::geteuid() || status.st_uid == 0; }

policy::Result<std::string, Diagnostic> text_of(const File &file, const std::string &path, bool own) {
    if (file.fd() < 0) return unread(path, why_not_opened(file.error()));
    struct stat status {};
    if (::fstat(file.fd(), &status) != 0)
        return unread(path, std::string("it cannot be read: ") + std::strerror(errno));
    if (S_ISDIR(status.st_mode)) return unread(path, "it is a directory; name the policy file in it");
    if (!S_ISREG(status.st_mode)) return unread(path, "it is not a regular file; copy the policy into one");

    if (own && !is_own(status))
        return unread(path, "it belongs to user " + std::to_string(status.st_uid) +
                                ", so it is not used; chown it, or name it in CURB_POLICY");

    std::string text;
    char block[16 * 1024];
    for (;;) {
        const ssize_t got = ::read(file.fd(), block, sizeof block);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return unread(path, std::string("it cannot be read: ") + std::strerror(errno));
        if (got == 0) return text;
        text.append(block, static_cast<std::size_t>(got));
        if (text.size() > kLargest)
            return unread(path, "it is larger than 1 MiB, which no policy is; is it the right file?");
    }
}

std::string directory_of(const std::string &path) {
    const std::size_t slash = path.rfind('/');
    if (slash == std::string::npos) return ".";
    return slash == 0 ? "/" : path.substr(0, slash);
}

policy::Result<std::string, Diagnostic> read_file(const std::string &path, bool own) {
    try {
        return text_of(File(path), path, own);
    } catch (...) {
        Diagnostics none = out_of_memory(path);
        return none.empty() ? Diagnostic() : std::move(none.front());
    }
}

std::string proc_text(const char *path) {
    const File file(path);
    std::string text;
    char block[4096];
    for (;;) {
        const ssize_t got = ::read(file.fd(), block, sizeof block);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return text;
        text.append(block, static_cast<std::size_t>(got));
    }
}

}  // namespace curb::config
