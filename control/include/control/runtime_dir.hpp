// The control sockets of capped processes: one for each process, in a folder that only its user may enter.
//
// The folder is the first of these that is the user's own and closed to others: $XDG_RUNTIME_DIR/curb, /run/curb/UID
// (if root has made /run/curb), /tmp/curb-UID, /tmp/curb-UID.1 to .9. Others can make folders of these names in /tmp
// before the user does, so there are spares, and readers look into each. A socket is named PID-START.sock: the pid as
// the process itself sees it, and its start in clock ticks since boot, because pids are used again.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "control/descriptor.hpp"
#include "policy/values/result.hpp"

namespace curb::control {

// The folders above. Tests use other ones.
struct Places {
    std::string xdg;  // XDG_RUNTIME_DIR; empty: unset
    std::string run_user = "/run/user";
    std::string run = "/run/curb";
    std::string tmp = "/tmp";
};
// Returns those of this process. Reads the environment, but not under AT_SECURE.
Places places();

// A folder for files of processes of `owner`.
struct Folder {
    std::string path;
    uid_t owner = 0;
    mode_t mode = 0700;  // 0755: others may read what is in it
    friend bool operator==(const Folder &, const Folder &) = default;
};
// Returns the folder of `user`, who runs this process. Makes it if it is missing. It is a real folder of that user,
// closed to others, with a path short enough for a socket. The error names the folders that were tried, their faults
// and the remedies. May throw std::bad_alloc, as all functions here.
policy::Result<Folder, std::string> runtime_directory(const Places &places, uid_t user);
// Returns why runtime_directory() uses none of the folders before its own. Empty if it uses the first that there can be
// here. Makes the folder, as that does.
std::string passed_over(const Places &places, uid_t user);
// Returns the folders in which processes of `user` may have their sockets. Some may be missing.
std::vector<Folder> folders_of(const Places &places, uid_t user);
// True for folders whose names end with .1 to .9, which stand in for the folder before them in folders_of().
bool is_spare(const Folder &folder);
// Returns the folders of all processes that `user` can ask: the user's own; for root, of all users, but those on
// fuse_of_users(). Some may be missing.
std::vector<Folder> folders(const Places &places, uid_t user);
// The same for the board (board.hpp): files of this user that all may read. The folder is the first of
// /run/curb/public/UID (if root has made /run/curb/public), /tmp/curb-public-UID and its spares.
policy::Result<Folder, std::string> public_directory(const Places &places, uid_t user);
// Returns the folders of all users' boards that are there.
std::vector<Folder> public_folders(const Places &places);
// Returns the mount points of FUSE file systems that users other than root have mounted. Such a user decides whether a
// system call of root there ever returns.
std::vector<std::string> fuse_of_users();
// True if the path is one of these mount points, or below one.
bool is_below(const std::vector<std::string> &mounts, const std::string &path);
// Opens the folder if it belongs to its owner and others have no more rights than `mode` says. Makes it first if
// `make`. The error names the folder and its fault.
policy::Result<Descriptor, std::string> open_folder(const Folder &folder, bool make);

struct ProcessName {
    int pid = 0;
    std::uint64_t start = 0;  // clock ticks since boot
    friend bool operator==(const ProcessName &, const ProcessName &) = default;
};
// Returns the process that has this pid now. nullopt if there is none, or /proc cannot be read.
std::optional<ProcessName> name_of(int pid);
// True if the first thread of this process has ended. Its others may go on.
bool first_thread_has_ended(int pid) noexcept;
// Returns the name of the process's socket.
std::string socket_name(const ProcessName &process);
// Returns the process whose socket has this name. nullopt if it is no such name.
std::optional<ProcessName> parse_socket_name(std::string_view name);

// Returns the name under which a socket is bound. It is renamed once it listens, so a socket that refuses a connection
// always belongs to a dead process.
std::string unfinished(const std::string &socket_name);

// At most so many names of a folder are taken: its owner can put any number there.
inline constexpr std::size_t kMostNames = 16'384;
// Returns the names in the folder for which `keep` is true, at most kMostNames. One thread at a time may read through
// one descriptor. Not by opendir: closedir would close any file that has the number by then.
std::vector<std::string> names_in(const Descriptor &folder, const std::function<bool(const std::string &)> &keep);
// Returns the names of the sockets in a folder. None if the folder is not its owner's own and closed to others.
std::vector<std::string> sockets_in(const Folder &folder);
// Returns the names of sockets that were not renamed within a minute. A rename takes microseconds.
std::vector<std::string> unfinished_in(const Folder &folder);
// Deletes a socket that has refused a connection, unless a symbolic link has taken the folder's place. Tries the socket
// once more first: a program that replaces itself makes a new one under the same name.
void remove_socket(const Folder &folder, const std::string &name);
// Deletes the sockets of processes that were killed. Tries the socket itself, because a pid may be another process's by
// now, or live in another pid namespace. Skips processes that /proc shows, because the test would wake each. Tests
// at most 32 sockets of a folder, from a random one on, so that a start costs the same with any number of them.
void remove_stale(const Folder &folder);

}  // namespace curb::control
