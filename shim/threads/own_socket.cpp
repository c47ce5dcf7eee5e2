#include "threads/own_socket.hpp"

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <utility>

namespace curb::shim {
namespace {

// The open sockets, for a fork child to close. A slot holds a descriptor only while its other fields are valid, so a
// fork may happen at any moment.
constexpr int kFree = -1, kTaken = -2;  // taken: being filled
struct Slot {
    std::atomic<int> fd{kFree};
    std::atomic<dev_t> device{0};
    std::atomic<ino_t> inode{0};
};
constinit std::array<Slot, 32> slots{};  // the listener, the pairs of the server and of a nap's helper, one per client

}  // namespace

bool OwnSocket::may_be_opened() noexcept {
    constexpr rlim_t kEnough = 64;
    rlimit limit{};
    return getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= kEnough;
}

OwnSocket::OwnSocket(int opened) noexcept {
    const int fd = control::above_standard(opened);
    descriptor_ = control::Descriptor(fd);
    struct stat status {};
    if (fd < 0 || fstat(fd, &status) != 0) return;
    for (std::size_t i = 0; i < slots.size() && slot_ < 0; ++i) {
        Slot &slot = slots[i];
        int free = kFree;
        if (!slot.fd.compare_exchange_strong(free, kTaken)) continue;
        slot.device = status.st_dev;
        slot.inode = status.st_ino;
        slot.fd = fd;
        slot_ = static_cast<int>(i);
    }
    if (slot_ < 0) descriptor_ = {};
}

OwnSocket::OwnSocket(OwnSocket &&other) noexcept
    : descriptor_(std::move(other.descriptor_)), slot_(std::exchange(other.slot_, -1)) {}

OwnSocket &OwnSocket::operator=(OwnSocket &&other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    std::swap(slot_, other.slot_);
    other.forget();
    return *this;
}

void OwnSocket::forget() noexcept {
    if (slot_ >= 0) slots[static_cast<std::size_t>(std::exchange(slot_, -1))].fd = kFree;
    descriptor_ = {};
}

bool OwnSocket::pair(OwnSocket &woken, OwnSocket &waker) noexcept {
    int ends[2] = {-1, -1};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) return false;
    woken = OwnSocket(ends[0]);
    waker = OwnSocket(ends[1]);
    if (woken && waker) return true;
    errno = EMFILE;
    return false;
}

void OwnSocket::wake() const noexcept {
    // If the socket is full, the thread has been woken already.
    if (ours() && send(number(), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) return;
}

bool OwnSocket::drain() const noexcept {
    std::array<char, 64> bytes;
    ssize_t got = 0;
    while ((got = recv(number(), bytes.data(), bytes.size(), MSG_DONTWAIT)) > 0) {
    }
    return got != 0;
}

// Uses raw system calls: a preload that wraps fstat or close may take a lock, as libfaketime does. If a thread of the
// parent held that lock during fork, it is never unlocked here.
void OwnSocket::close_in_fork_child() noexcept {
    for (Slot &slot : slots) {
        const int fd = slot.fd.exchange(kFree);
        struct stat status {};
        if (fd >= 0 && syscall(SYS_fstat, fd, &status) == 0 && status.st_dev == slot.device &&
            status.st_ino == slot.inode)
            syscall(SYS_close, fd);
    }
}

}  // namespace curb::shim
