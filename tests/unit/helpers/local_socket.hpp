// A socket that is bound in the file system, and does not listen.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <filesystem>

// Returns its descriptor; -1 if it cannot be bound.
inline int bound_socket(const std::filesystem::path &path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.string().copy(address.sun_path, sizeof address.sun_path - 1);
    const int out = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    return ::bind(out, reinterpret_cast<const sockaddr *>(&address), sizeof address) == 0 ? out : -1;
}
