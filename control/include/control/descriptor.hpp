// A descriptor of curb in a process that is not ours. The program may close any number and open another file under it,
// so curb compares the inode before it uses or closes the number.
//
// The program can still act between the check and the use. Sockets are therefore used only by calls for sockets (recv,
// send, accept), which fail on a file or pipe that has taken the number.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace curb::control {

// Moves a descriptor that was just opened to a number above 2. A program that was started without 0, 1 and 2 would
// print into it. Returns -1 and sets errno if no descriptor is left.
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
    // Takes ownership of a descriptor that was just opened; less than 0: of none.
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
    // True if the number still names the file that was opened. Sets errno if not. Async-signal-safe.
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
