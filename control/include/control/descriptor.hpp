// A descriptor inside somebody else's process, which may close any number it finds and open something else under it.
// So what stands under the number is looked at before it is used, and never closed if it is not ours any more.
//
// Between the look and the use lies a moment in which the program could still step in. Hence sockets are only touched
// by calls for sockets (recv, send, accept), which fail on a file or pipe that has taken the number.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace curb::control {

// A descriptor that has just been opened, under another number than 0, 1 and 2. In a program that was started without
// those they are what comes first, and what it prints goes to whatever stands there. -1, errno says why: none is left.
inline int above_standard(int fd) noexcept {
    constexpr int kFirst = 3;
    if (fd < 0 || fd >= kFirst) return fd;
    const int moved = ::fcntl(fd, F_DUPFD_CLOEXEC, kFirst), error = errno;
    ::close(fd);
    errno = error;
    return moved;
}

class Descriptor {
  public:
    Descriptor() noexcept = default;
    // Takes a descriptor that has just been opened; less than 0: none.
    explicit Descriptor(int fd) noexcept : fd_(fd) {
        struct stat status {};
        if (fd_ < 0 || ::fstat(fd_, &status) != 0) return;
        device_ = status.st_dev;
        inode_ = status.st_ino;
    }
    Descriptor(Descriptor &&other) noexcept { swap(other); }
    Descriptor &operator=(Descriptor &&other) noexcept {
        Descriptor taken(std::move(other));
        swap(taken);
        return *this;
    }
    Descriptor(const Descriptor &) = delete;
    Descriptor &operator=(const Descriptor &) = delete;
    ~Descriptor() {
        if (ours()) ::close(fd_);
    }

    [[nodiscard]] int number() const noexcept { return fd_; }
    // Whether the number still stands for what was opened. Sets errno if not; async-signal-safe.
    [[nodiscard]] bool ours() const noexcept {
        struct stat status {};
        return fd_ >= 0 && ::fstat(fd_, &status) == 0 && status.st_dev == device_ && status.st_ino == inode_;
    }
    explicit operator bool() const noexcept { return fd_ >= 0; }

  private:
    void swap(Descriptor &other) noexcept {
        std::swap(fd_, other.fd_);
        std::swap(device_, other.device_);
        std::swap(inode_, other.inode_);
    }

    int fd_ = -1;
    dev_t device_ = 0;
    ino_t inode_ = 0;
};

}  // namespace curb::control
