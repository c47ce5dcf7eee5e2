// Names of signals, steps, levels and reports in a policy file. Errors name the fault and a correct name. Thread-safe.
// May throw std::bad_alloc.
#pragma once

#include <string>
#include <string_view>

#include "policy/policy.hpp"
#include "policy/values/result.hpp"

namespace curb::policy {

// Reads the name of a signal that may request a release: "SIGUSR1", "SIGRTMIN+3" or "none" (0).
Result<int, std::string> parse_signal(std::string_view name);
// Returns "SIGUSR1", "SIGRTMIN+3" or "none"; "signal 9" for other numbers.
std::string signal_name(int signal);

Result<Step, std::string> parse_step(std::string_view name);
Result<LogLevel, std::string> parse_log_level(std::string_view name);
const char *report_name(Report report) noexcept;
Result<Report, std::string> parse_report(std::string_view name);
const char *job_of_name(JobOf of) noexcept;
Result<JobOf, std::string> parse_job_of(std::string_view name);
const char *share_name(Share share) noexcept;
Result<Share, std::string> parse_share(std::string_view name);

}  // namespace curb::policy
