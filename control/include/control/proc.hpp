// Reads /proc of other processes. A process may end while it is read.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace curb::control {

// "process 4711"
std::string process_text(int pid);
// "/proc/4711/status"
std::string proc_path(int pid, const std::string &what);
// Returns the text of a file of /proc or /sys, at most `most` bytes. nullopt if it cannot be opened or read.
std::optional<std::string> file_text(const std::string &path, std::size_t most = std::size_t{64} << 20);
// Returns /proc/PID/WHAT, at most `most` bytes, as far as it can be read.
std::string proc_text(int pid, const char *what, std::size_t most = std::size_t{64} << 20);
// Calls `each` with the lines of /proc/PID/WHAT until it returns false. Reads in pieces, at most 32 MiB, and cuts a
// line after 8 KiB: a process can have 65,000 mappings with paths of any length. Returns false if there is no line to
// read.
bool each_line(int pid, const char *what, const std::function<bool(std::string_view)> &each);
// The library, in the path of a mapping.
inline constexpr std::string_view kLibrary = "/libcurb.so";
// True if the process has mapped a file with this text in its path. nullopt if its maps cannot be read.
std::optional<bool> has_mapped(int pid, std::string_view text);
// The most bytes that curb reads of an environment. No process starts with a larger one, but a process can put any text
// in its place later.
inline constexpr std::size_t kMostOfEnvironment = std::size_t{8} << 20;
// Returns the value of "NAME:" in the text of /proc/PID/status, without blanks around it. Empty if it is not there.
std::string_view field_in(std::string_view status, std::string_view name);
// Returns the pid of the process in the innermost pid namespace that it lives in, by that text. `pid`: its pid here,
// which it has there too if that is this one or unknown.
int innermost_pid(int pid, std::string_view status);
// Returns the number at the beginning of such a value. 0 if there is none.
std::uint64_t number_in(std::string_view status, std::string_view name);
// True if the process has ended. A zombie has.
bool has_ended(int pid);
// True if it is on its way out: the driver may still hold its memory. Allocates nothing.
bool is_exiting(int pid) noexcept;
// True if a signal or a debugger has stopped it: by the text of /proc/PID/status, or now.
bool is_stopped(std::string_view status);
bool is_stopped(int pid);
// Returns the effective user. nullopt if there is no such process, or /proc does not show it.
std::optional<uid_t> owner_of(int pid);

}  // namespace curb::control
