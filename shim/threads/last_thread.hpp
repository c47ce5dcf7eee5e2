// The end of a process whose first thread has left the others to go on: pthread_exit in main. Such a process ends with
// its last thread, and glibc counts ours among them, which never end. So once there are no others, ours end it.
#pragma once

#include <cstdint>
#include <optional>

namespace curb::shim::last_thread {

// Of the process's first thread, if that is the calling one: what it leaves is noticed. Allocates nothing.
void watch() noexcept;

// How soon end_if_alone() is to be called again, in milliseconds; none: the first thread has not left.
std::optional<std::uint64_t> poll() noexcept;

// On the worker. Ends the process by exit(0), as its last thread would, if all but ours have ended.
void end_if_alone() noexcept;

// One of our threads, for as long as it lives.
class Ours {
  public:
    Ours() noexcept;
    ~Ours();
    Ours(const Ours &) = delete;
    Ours &operator=(const Ours &) = delete;
};

}  // namespace curb::shim::last_thread
