// The file of the control socket: how others find this process. There from the first moment at which it can be
// connected to, until the process ends normally or gives it up.
#pragma once

#include <string>

#include "control/runtime_dir.hpp"
#include "own_socket.hpp"

namespace curb::shim::socket_file {

// Has it deleted at the end of the process. Once, before anything else here; may throw std::bad_alloc, as listen().
void until_exit();

// A socket in the folder that others can connect to, or why there is none (empty: the process is about to end).
OwnSocket listen(const control::Folder &folder, std::string &why);

// Deletes the file. Not if another file stands there now: of a process with our pid in another pid namespace.
void withdraw() noexcept;

// In a fork child: the file stays its parent's. Async-signal-safe.
void in_fork_child() noexcept;

}  // namespace curb::shim::socket_file
