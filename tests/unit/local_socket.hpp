// A socket of the file system that is bound there, and nothing more.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <filesystem>

// Its descriptor; -1: it could not be had.
inline int bound_socket(const std::filesystem::path &path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.string().copy(address.sun_path, sizeof address.sun_path - 1);
    const int out = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    return ::bind(out, reinterpret_cast<const sockaddr *>(&address), sizeof address) == 0 ? out : -1;
}
