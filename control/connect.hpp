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
// True if a process of the folder's user listens at the other end. Others can, if root has opened the folder to them.
inline bool speaks_for(const ucred &who, const Folder &folder) { return who.uid == folder.owner; }
// True if the process may have its socket in this folder: its user's, or root's, if it gave up root's rights since. A
// pid comes again, so a folder may hold a socket of an earlier process with it, on which a child of that one still
// listens.
bool belongs_in(const Folder &folder, int pid);

}  // namespace curb::control
