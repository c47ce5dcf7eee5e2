// curb's log. It goes to stderr or to the policy's log file, never to stdout. The default level is warning.
// Thread-safe. Not async-signal-safe. write() keeps errno.
#pragma once

#include <string>
#include <string_view>

#include "policy/policy.hpp"

namespace curb::shim::log {

// Applies the policy's level and file. Keeps the old log if host memory is exhausted.
void configure(const policy::LogPolicy &policy) noexcept;
bool enabled(policy::LogLevel level) noexcept;
void write(policy::LogLevel level, std::string_view message) noexcept;
// Replaces the first %p in the path of a file by the pid. May throw std::bad_alloc.
std::string with_pid(std::string path);

}  // namespace curb::shim::log
