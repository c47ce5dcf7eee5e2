// The control socket: other processes of the user, and root's, ask here what this one holds, for releases, and for
// other caps. Served by one thread, curb-control, which never waits for anything but its sockets: a driver that is
// stuck, or a program that keeps Python's lock, does not keep it from answering.
//
// The program may close our descriptors and open its own under their numbers (descriptor.hpp): they are looked at
// before each use, and once one of the server's is gone it serves no more.
#pragma once

namespace curb::shim::server {

// Starts the thread. Once, by the first successful cuInit.
void start() noexcept;

// In a fork child, whose parent goes on serving. Async-signal-safe.
void in_fork_child() noexcept;

}  // namespace curb::shim::server
