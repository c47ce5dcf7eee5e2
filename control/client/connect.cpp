#include "connect.hpp"

#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>

#include "control/proc.hpp"

namespace curb::control {

Descriptor connect_to(const std::string &path, int &error) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.size() > kLongestPath) {
        error = ENAMETOOLONG;
        return {};
    }
    path.copy(address.sun_path, path.size());
    Descriptor out(above_standard(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)));
    if (!out || ::connect(out.number(), reinterpret_cast<const sockaddr *>(&address), sizeof address) != 0) {
        error = errno;
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
