// Reads the values of fields: one function for each type in policy::FieldType, called by the table of fields
// (policy/fields.def). Each sets `member` or adds a fault. `least`: the least value of the table, as a file writes it.
// Private to config/.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "faults.hpp"
#include "policy/policy.hpp"

namespace curb::config {

// A larger factor of growth is a typing error.
inline constexpr double kLargestFactor = 100;

void read_ignored(Faults &faults, const Value &value);
void read_version(Faults &faults, const Value &value);

void read_size(Faults &faults, const Value &value, std::string_view least, std::optional<policy::Size> &member);
void read_factor(Faults &faults, const Value &value, std::string_view least, std::optional<double> &member);
void read_duration(Faults &faults, const Value &value, std::string_view least, std::optional<policy::Duration> &member);
void read_delay(Faults &faults, const Value &value, std::string_view least, std::optional<policy::Duration> &member);
void read_flag(Faults &faults, const Value &value, std::string_view least, std::optional<bool> &member);
void read_report(Faults &faults, const Value &value, std::string_view least, std::optional<policy::Report> &member);
void read_job_of(Faults &faults, const Value &value, std::string_view least, std::optional<policy::JobOf> &member);
void read_share(Faults &faults, const Value &value, std::string_view least, std::optional<policy::Share> &member);
void read_signal(Faults &faults, const Value &value, std::string_view least, std::optional<int> &member);
void read_steps(Faults &faults, const Value &value, std::string_view least,
                std::optional<std::vector<policy::Step>> &member);
void read_environment(Faults &faults, const Value &value, std::string_view least,
                      std::optional<policy::Environment> &member);
void read_level(Faults &faults, const Value &value, std::string_view least, std::optional<policy::LogLevel> &member);
void read_path(Faults &faults, const Value &value, std::string_view least, std::optional<std::string> &member);
void read_text(Faults &faults, const Value &value, std::string_view least, std::optional<std::string> &member);
void read_pattern(Faults &faults, const Value &value, std::string_view least, std::optional<std::string> &member);
void read_patterns(Faults &faults, const Value &value, std::string_view least,
                   std::optional<policy::Environment> &member);

}  // namespace curb::config
