// Connects to a socket by its path. Private to control/.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <string>

#include "control/descriptor.hpp"
#include "control/runtime_dir.hpp"

namespace curb::control {

// The longest path under which a socket can be bound: sockaddr_un holds it with its NUL.
inline constexpr std::size_t kLongestPath = 107;

// Returns a connection that does not block to a socket of `owner`. Follows no link: the owner of a folder could lead
// root to any socket of the machine. Root connects as the owner: a process in a user namespace may not know root.
// The library calls it for folders of its own user only. Sets `error` if there is none. ECONNREFUSED: no process
// listens any more. EAGAIN: too many others connect just now. ENOTSOCK: it is something else. EPERM: it is another
// user's.
Descriptor connect_to(const std::string &path, uid_t owner, int &error);

// Returns the process at the other end, with its pid in this pid namespace. nullopt if the kernel does not say.
std::optional<ucred> peer(const Descriptor &connection);
// True if the process at the other end is of the folder's user. Others can listen if root has opened the folder to
// them.
inline bool speaks_for(const ucred &who, const Folder &folder) { return who.uid == folder.owner; }
// True if the process may have its socket in this folder: the folder is its user's, or root's, because a process that
// root started may have given up root's rights since. A pid is used again: the folder may hold the socket of an earlier
// process with this pid, and a child of that process may still listen on it.
bool belongs_in(const Folder &folder, int pid);

}  // namespace curb::control
