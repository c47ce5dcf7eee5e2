// Ends a process whose main thread called pthread_exit. Such a process ends with its last thread, but glibc counts
// curb's threads too, and these never end. So curb ends the process when only its own threads are left.
#pragma once

#include <cstdint>
#include <optional>

#include "base/lifetime.hpp"

namespace curb::shim::last_thread {

// Watches for pthread_exit of the main thread. Has an effect only if the main thread calls it. Allocates nothing.
[[gnu::cold]] void watch() noexcept;

// Returns in how many milliseconds to call end_if_alone() again; nullopt if the main thread has not exited.
std::optional<std::uint64_t> poll() noexcept;

// Calls exit(0), as glibc does after a last thread, if only curb's threads are left. Worker thread only.
void end_if_alone() noexcept;

// Counts the calling thread as one of curb's during the guard's lifetime.
class OwnThreadGuard : NoCopy {
  public:
    OwnThreadGuard() noexcept;
    ~OwnThreadGuard();
};

}  // namespace curb::shim::last_thread
