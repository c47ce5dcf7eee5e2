#include "host/log_file.hpp"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>

#include "base/lifetime.hpp"

namespace curb::shim::log {
namespace {

constexpr int kPipeWaitMs = 100;  // the longest wait for the reader of a full pipe

constinit std::atomic<bool> has_stderr{true};

// Blocks SIGPIPE and SIGXFSZ and removes those that curb's own write raised, so that the program gets only its own.
class BlockWriteSignals : NoCopy {
  public:
    BlockWriteSignals() noexcept {
        sigset_t signals, pending;
        sigemptyset(&signals);
        sigaddset(&signals, SIGPIPE);
        sigaddset(&signals, SIGXFSZ);
        sigpending(&pending);
        sigemptyset(&ours_);
        for (const int signal : {SIGPIPE, SIGXFSZ})
            if (!sigismember(&pending, signal)) sigaddset(&ours_, signal);
        pthread_sigmask(SIG_BLOCK, &signals, &before_);
    }
    ~BlockWriteSignals() {
        const timespec none{};
        while (raised_ && sigtimedwait(&ours_, nullptr, &none) > 0) {
        }
        pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    }
    // Call it with the errno of a failed write.
    void note(int error) noexcept { raised_ |= error == EPIPE || error == EFBIG; }

  private:
    sigset_t before_{}, ours_{};
    bool raised_ = false;
};

int open_above_standard(const std::string &path) noexcept {
    int fd = -1;
    // O_NONBLOCK: opening or writing a FIFO must not wait for a reader.
    constexpr int kFlags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
    do fd = ::open(path.c_str(), kFlags, 0666);
    while (fd < 0 && errno == EINTR);
    return control::above_standard(fd);
}

bool wait_writable(int fd, int timeout_ms) noexcept {
    pollfd polled{fd, POLLOUT, 0};
    int ready = poll(&polled, 1, timeout_ms);
    while (ready < 0 && errno == EINTR) ready = poll(&polled, 1, 0);  // signals must not prolong the wait
    return ready > 0 && (polled.revents & POLLOUT) != 0;
}

}  // namespace

void check_stderr() noexcept {
    struct stat status {};
    has_stderr = fstat(STDERR_FILENO, &status) == 0;
}

policy::Result<LogFile, std::string> LogFile::open(const std::string &path) {
    LogFile out;
    char folder[PATH_MAX];
    out.path_ = path.starts_with('/') || !getcwd(folder, sizeof folder) ? path : std::string(folder) + "/" + path;
    const int fd = open_above_standard(out.path_);
    if (fd < 0) return path + ": " + (errno == ENXIO ? "no process reads this FIFO" : std::strerror(errno));
    out.descriptor_ = control::Descriptor(fd);
    return out;
}

int LogFile::number() noexcept {
    if (path_.empty()) return has_stderr ? STDERR_FILENO : -1;
    if (!descriptor_.ours()) {
        descriptor_ = control::Descriptor(open_above_standard(path_));
        cut_ = false;
    }
    return descriptor_.number();
}

void LogFile::write(std::string_view line) noexcept {
    const int fd = number();
    if (fd < 0) return;
    BlockWriteSignals signals;
    if (cut_) cut_ = ::write(fd, "\n", 1) != 1;
    // Pieces of PIPE_BUF bytes fit into a pipe that poll() calls writable. Once it was full, we do not wait again.
    for (std::size_t at = 0; at < line.size();) {
        full_ = !wait_writable(fd, full_ ? 0 : kPipeWaitMs);
        const ssize_t wrote =
            full_ ? -1 : ::write(fd, line.data() + at, std::min<std::size_t>(line.size() - at, PIPE_BUF));
        if (wrote < 0 && !full_ && errno == EINTR) continue;
        if (wrote < 0 && !full_) signals.note(errno);
        if (wrote <= 0) {
            cut_ = cut_ || at != 0;
            return;
        }
        at += static_cast<std::size_t>(wrote);
    }
}

}  // namespace curb::shim::log
