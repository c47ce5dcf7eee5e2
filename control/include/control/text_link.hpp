// Small texts that processes of several users leave for each other: each is the target of a symbolic link. So a process
// writes it, and a reader reads it, without a descriptor, which the program could close and open another file under its
// number. Its owner replaces it as a whole, and sets its time while it lives.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "control/descriptor.hpp"
#include "control/runtime_dir.hpp"

namespace curb::control::text_link {

inline constexpr std::size_t kLongest = 3584;  // a link has room for 4095
// Its owner sets its time this often. A reader takes only one whose time was set since kFreshMs for a sign of life.
inline constexpr std::uint64_t kTouchMs = 2000, kFreshMs = 5000;
// A process of another pid namespace that has not set its time for so long is dead: the file is deleted.
inline constexpr std::uint64_t kDeadMs = 60'000;

// How the name ends under which a file is made.
inline constexpr std::string_view kUnfinished = ".new";
// Makes or replaces the file. Returns why it could not; empty: it has. Uses no descriptor. May throw std::bad_alloc.
std::string write(const std::string &path, const std::string &text);
// Deletes the files of this user's that a process was making when it was killed. May throw std::bad_alloc.
void remove_unfinished(const Descriptor &folder);
// Sets the time of the file. False if it is not there. Uses no descriptor.
bool touch(const std::string &path) noexcept;

struct Found {
    std::string text;
    std::uint64_t age_ms = 0;  // since its time was set; of a time that is yet to come: for ever
};
// Reads a file of a folder. nullopt if it is no text of this owner. May throw std::bad_alloc.
std::optional<Found> read(const Descriptor &folder, const std::string &name, uid_t owner);

// Returns the number of this process's pid namespace. 0: unknown.
std::uint64_t own_pid_namespace() noexcept;
// `silent`: it has not set the time lately, because it is stopped, has replaced itself, or is dead elsewhere.
enum class Life : std::uint8_t { dead, silent, lives };
// Returns whether a process of this owner, which set the time so long ago, is alive. `process`: as it sees itself, in
// `pid_namespace`. `own`: own_pid_namespace().
Life life_of(const ProcessName &process, std::uint64_t pid_namespace, uid_t owner, std::uint64_t age_ms,
             std::uint64_t own);

}  // namespace curb::control::text_link
