// Reaching a socket by its path. Private to control/.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <optional>
#include <string>

#include "control/descriptor.hpp"
#include "control/runtime_dir.hpp"

namespace curb::control {

// What sockaddr_un has room for, without its NUL.
inline constexpr std::size_t kLongestPath = 107;

// A connection, which does not block; none: `error` says why. ECONNREFUSED: nobody listens there any more. EAGAIN: too
// many others are being taken in just now. A path that is too long: ENAMETOOLONG.
Descriptor connect_to(const std::string &path, int &error);

// Who listens at the other end, as this pid namespace knows it.
std::optional<ucred> peer(const Descriptor &connection);
// Root may have opened the folder's socket by another user's leave: a process of that user must answer, or root's.
inline bool speaks_for(const ucred &who, const Folder &folder) { return who.uid == folder.owner || who.uid == 0; }

}  // namespace curb::control
