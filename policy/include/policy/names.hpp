// The names that a policy file uses for signals, steps, levels and reports, and back. Errors are sentences that say
// what is wrong and what would be right. Thread-safe; may throw std::bad_alloc, which callers catch.
#pragma once

#include <string>
#include <string_view>

#include "policy/policy.hpp"
#include "policy/result.hpp"

namespace curb::policy {

// "SIGUSR1", "SIGRTMIN+3", "none" (0): the signals that may ask for a release.
Result<int, std::string> parse_signal(std::string_view name);
// "SIGUSR1", "SIGRTMIN+3", "none"; for other numbers "signal 9".
std::string signal_name(int signal);

Result<Step, std::string> parse_step(std::string_view name);
Result<LogLevel, std::string> parse_log_level(std::string_view name);
Result<Report, std::string> parse_report(std::string_view name);

}  // namespace curb::policy
