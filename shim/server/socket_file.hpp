// The file of the control socket, by which clients find this process. It exists from the moment that clients can
// connect until the process ends normally or withdraws it.
#pragma once

#include <string>

#include "control/runtime_dir.hpp"
#include "threads/own_socket.hpp"

namespace curb::shim::socket_file {

// Has exit() delete the file. Call it once, before the other functions. Throws std::bad_alloc, as listen().
void until_exit();

// Creates a socket in the folder that others can connect to. On failure returns an invalid socket and sets `why`; `why`
// stays empty if the process is ending.
OwnSocket listen(const control::Folder &folder, std::string &why);

// True if the file is still there, or the process is ending.
bool is_there() noexcept;

// Deletes the file, unless it was replaced: a process in another pid namespace may have the same pid.
void withdraw() noexcept;

}  // namespace curb::shim::socket_file
