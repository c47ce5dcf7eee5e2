// What curb has to say: to stderr or to the policy's log file, never to stdout. Quiet by default (level warning).
// Thread-safe; not for signal handlers. Leaves errno as it is and never throws.
#pragma once

#include <string_view>

#include "policy/policy.hpp"

namespace curb::shim::log {

void configure(const policy::LogPolicy &policy) noexcept;
bool enabled(policy::LogLevel level) noexcept;
void write(policy::LogLevel level, std::string_view message) noexcept;

}  // namespace curb::shim::log
