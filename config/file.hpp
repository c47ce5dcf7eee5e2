// Opens and reads files of any type. Private to config/.
#pragma once

#include <sys/stat.h>

#include <string>

#include "config/load.hpp"

namespace curb::config {

// An open file. The destructor closes it.
class File {
  public:
    explicit File(const std::string &path, int flags = 0);
    ~File();
    File(const File &) = delete;
    File &operator=(const File &) = delete;
    [[nodiscard]] int fd() const { return fd_; }
    [[nodiscard]] int error() const { return error_; }  // why it is not open

  private:
    int fd_;
    int error_;
};

// Returns the text of a regular file, at most 1 MiB, or why it cannot be read. `own`: it must be is_own(). These may
// throw std::bad_alloc.
policy::Result<std::string, Diagnostic> text_of(const File &file, const std::string &path, bool own = false);
// Returns the text of a file of /proc, as far as it can be read. Such a file has no size, and may hold NULs.
std::string proc_text(const char *path);
// True if it belongs to this process's user or to root. Files of others count only if they are named: under sudo -E,
// HOME may be another user's, whose policy names files that root would write.
bool is_own(const struct stat &status);
// Returns the message for a failed open; `error`: its errno.
std::string why_not_opened(int error);
// Returns the diagnostic for a file that cannot be read.
Diagnostic unread(const std::string &path, std::string message);

// Returns the path of the file's directory: "." for "policy.json".
std::string directory_of(const std::string &path);

}  // namespace curb::config
