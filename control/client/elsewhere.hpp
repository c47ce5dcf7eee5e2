// Control sockets of processes in containers: in another pid namespace, or behind another root (a private /tmp).
// Private to control/.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "control/descriptor.hpp"
#include "control/runtime_dir.hpp"

namespace curb::control {

struct InnerSocket {
    int pid = 0;       // of the process, as this one sees it
    Folder folder;     // "/proc/self/fd/7": the descriptor of the folder; and its owner as this process sees it
    std::string name;  // of the socket, with the pid as the process itself sees it
    std::shared_ptr<const Descriptor> open;
};

// Returns the XDG_RUNTIME_DIR with which the process was started; empty: none, or it may not be inspected.
std::string runtime_directory_of(int pid);

// Returns the sockets of the process, if it lives in another mount namespace than this one or, with `shares_folder`, in
// another pid namespace. Empty if it does not, if it has no socket, or if it may not be inspected. Follows no link out
// of a container. May throw std::bad_alloc.
std::vector<InnerSocket> sockets_inside(int pid, bool shares_folder = true);
// Returns those of all processes. `share_folders`: a folder of this mount namespace has sockets of processes that do
// not run in this pid namespace. Without, one system call for each process of the machine. May throw std::bad_alloc.
std::vector<InnerSocket> sockets_elsewhere(bool share_folders);

}  // namespace curb::control
