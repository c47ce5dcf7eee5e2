#include "terminal/replace_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "terminal/terminal.hpp"

namespace curb::cli {
namespace {

namespace fs = std::filesystem;

std::string why(const char *what, const std::string &path, int error) {
    return std::string(what) + " " + path + ": " + std::strerror(error);
}

// Blocks the signals that would end curb, so that no temporary file stays behind. With SIGXFSZ blocked, write() beyond
// the process's file size limit fails.
class Undisturbed {
  public:
    Undisturbed() {
        sigset_t signals;
        ::sigemptyset(&signals);
        for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGXFSZ}) ::sigaddset(&signals, signal);
        ::sigprocmask(SIG_BLOCK, &signals, &before_);
    }
    // Drops a pending SIGXFSZ: write() has reported the error.
    ~Undisturbed() {
        sigset_t limit;
        ::sigemptyset(&limit);
        ::sigaddset(&limit, SIGXFSZ);
        const timespec none{};
        while (::sigtimedwait(&limit, nullptr, &none) == SIGXFSZ) {
        }
        ::sigprocmask(SIG_SETMASK, &before_, nullptr);
    }
    Undisturbed(const Undisturbed &) = delete;
    Undisturbed &operator=(const Undisturbed &) = delete;

  private:
    sigset_t before_{};
};

bool filled(int file, const std::string &text, mode_t mode) {
    const bool good = ::fchmod(file, mode) == 0 && write_all(file, text) && ::fsync(file) == 0;
    const int error = errno;
    const bool closed = ::close(file) == 0;  // some file systems report a full disk only now
    if (!good) errno = error;
    return good && closed;
}

}  // namespace

std::optional<std::string> replace_file(const std::string &path, const std::string &text, mode_t mode) {
    std::error_code error;
    const fs::file_status there = fs::status(path, error);
    if (fs::exists(there) && !fs::is_regular_file(there)) return path + " is there, and is no file";
    // A symbolic link stays; what it points to is replaced.
    const std::string target = fs::exists(there) ? fs::canonical(path, error).string() : path;
    if (error && fs::exists(there)) return why("cannot follow", path, error.value());

    const Undisturbed undisturbed;
    std::string beside = target + ".XXXXXX";
    const int file = ::mkostemp(beside.data(), O_CLOEXEC);
    if (file < 0) return why("cannot make a file beside", target, errno);
    std::optional<std::string> wrong;
    if (!filled(file, text, mode))
        wrong = why("cannot write", beside, errno);
    else if (::rename(beside.c_str(), target.c_str()) != 0)
        wrong = why("cannot replace", target, errno);
    if (wrong) ::unlink(beside.c_str());
    return wrong;
}

}  // namespace curb::cli
