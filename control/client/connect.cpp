#include "connect.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "control/proc.hpp"

namespace curb::control {
namespace {

// Connects as `owner` if this process is root: a process in a user namespace, as in a rootless container, does not know
// the root outside of it. Changes the effective user of this thread alone; setresuid(2) of the C library changes all
// threads. The owner cannot signal or trace a thread whose real user is root.
bool connect_as(uid_t owner, int socket, const sockaddr_un &address) {
    const bool other = ::geteuid() == 0 && owner != 0 && ::syscall(SYS_setresuid, -1, owner, -1) == 0;
    const bool connected = ::connect(socket, reinterpret_cast<const sockaddr *>(&address), sizeof address) == 0;
    const int error = errno;
    if (other && ::syscall(SYS_setresuid, -1, 0, -1) != 0) std::abort();  // the saved user is root
    errno = error;
    return connected;
}

}  // namespace

Descriptor connect_to(const std::string &path, uid_t owner, int &error) {
    const Descriptor file(above_standard(::open(path.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC)));
    struct stat status {};
    if (!file || ::fstat(file.number(), &status) != 0) {
        error = errno;
        return {};
    }
    if (!S_ISSOCK(status.st_mode) || status.st_uid != owner) {
        error = S_ISSOCK(status.st_mode) ? EPERM : ENOTSOCK;
        return {};
    }
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    // Not /proc/self: it shows no descriptors once the first thread has ended.
    ("/proc/thread-self/fd/" + std::to_string(file.number())).copy(address.sun_path, sizeof address.sun_path - 1);
    Descriptor out(above_standard(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)));
    if (!out || !connect_as(owner, out.number(), address)) {
        error = errno;
        if (!file.ours()) error = EBADF;  // the program has opened another file under the number
        return {};
    }
    return out;
}

std::optional<ucred> peer(const Descriptor &connection) {
    ucred out{};
    socklen_t size = sizeof out;
    if (::getsockopt(connection.number(), SOL_SOCKET, SO_PEERCRED, &out, &size) != 0) return std::nullopt;
    return out;
}

bool belongs_in(const Folder &folder, int pid) {
    const auto owner = owner_of(pid);
    return !owner || *owner == folder.owner || folder.owner == 0;
}

}  // namespace curb::control
