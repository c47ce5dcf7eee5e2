// Where capped processes can be reached: one socket for each in a folder of its user's, which only that user may enter.
//
// The folder is $XDG_RUNTIME_DIR/curb or, where that cannot be had, /tmp/curb-UID. A socket is named PID-START.sock: by
// the pid as the process itself sees it and by its start in clock ticks since boot, because pids are used again.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "control/descriptor.hpp"
#include "policy/result.hpp"

namespace curb::control {

// What stands around the folders. Tests put others in the place of the machine's.
struct Places {
    std::string xdg;  // XDG_RUNTIME_DIR; empty: unset
    std::string run_user = "/run/user";
    std::string tmp = "/tmp";
};
// Those of this process. Reads the environment, but not under AT_SECURE.
Places places();

// A folder in which processes of `owner` may have their sockets.
struct Folder {
    std::string path;
    uid_t owner = 0;
    friend bool operator==(const Folder &, const Folder &) = default;
};
// The folder of `user`, who runs this process: made if it is not there; a real folder, the user's own, closed to
// others, and short enough for the name of a socket in it. The error names each folder that was tried, what is wrong
// with it and what to do. May throw std::bad_alloc, as all here.
policy::Result<Folder, std::string> runtime_directory(const Places &places, uid_t user);
// Why the folder in XDG_RUNTIME_DIR is not the one that runtime_directory() gives; empty: it is, or the variable is not
// set. Makes it, as that does.
std::string why_not_in_xdg(const Places &places, uid_t user);
// The folders in which processes of `user` may have their sockets. Some may not be there.
std::vector<Folder> folders_of(const Places &places, uid_t user);
// The folders of all processes that `user` can ask: those of the user; for root, of all users. Some may not be there.
std::vector<Folder> folders(const Places &places, uid_t user);
// Opens the folder if it is its owner's own and closed to others. Makes it first if `make`. The error names it and says
// what is wrong with it.
policy::Result<Descriptor, std::string> open_folder(const Folder &folder, bool make);

struct ProcessName {
    int pid = 0;
    std::uint64_t start = 0;  // clock ticks since boot
    friend bool operator==(const ProcessName &, const ProcessName &) = default;
};
// The process as it is now; none: there is none with this pid, or /proc is not to be had.
std::optional<ProcessName> name_of(int pid);
// Whether the first thread of this process is gone; its others may go on.
bool first_thread_has_ended(int pid) noexcept;
std::string socket_name(const ProcessName &process);
std::optional<ProcessName> parse_socket_name(std::string_view name);

// A name that no socket has for long: it is bound under this one, and renamed once it can be connected to. So a socket
// that refuses is always a dead process's.
std::string unfinished(const std::string &socket_name);

// No more names of a folder are kept: its owner can put any number there.
inline constexpr std::size_t kMostNames = 16'384;
// The names of the sockets in a folder. Nothing, if it is not the owner's own and closed to others.
std::vector<std::string> sockets_in(const Folder &folder);
// The same of those that were not renamed for a minute, which takes microseconds.
std::vector<std::string> unfinished_in(const Folder &folder);
// Deletes a socket that has refused, but nothing through a symbolic link that has taken the folder's place. It is tried
// once more: a program that replaces itself makes its new socket under the same name, perhaps since then.
void remove_socket(const Folder &folder, const std::string &name);
// Deletes sockets that nobody listens on any more: of processes that were killed. A pid that lives may be another
// process by now, and one that does not may live in another pid namespace, so the socket itself is tried; but not that
// of a process which is seen to run, for each one that starts would wake all others. And of a folder with many no more
// than 32, from anywhere on, so that a start costs the same however many there are.
void remove_stale(const Folder &folder);

}  // namespace curb::control
