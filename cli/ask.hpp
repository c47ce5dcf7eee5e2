// Capped processes as commands ask them: pids as they are typed, answers as they are expected.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "control/messages.hpp"
#include "control/proc.hpp"
#include "policy/result.hpp"

namespace curb::cli {

// The error says that it is none.
policy::Result<int, std::string> parse_pid(const std::string &word);
// Each once, in their order.
policy::Result<std::vector<int>, std::string> parse_pids(const std::vector<std::string> &words);

// The answer, or why it is none of this kind.
template <class Report>
policy::Result<Report, std::string> report_in(int pid, control::Reply reply) {
    if (auto *report = std::get_if<Report>(&reply)) return std::move(*report);
    if (auto *failure = std::get_if<control::Failure>(&reply)) return std::move(failure->message);
    return control::process_text(pid) + " answers something else than was asked";
}
// {"pid":4711,"error":"…"}
std::string error_json(int pid, const std::string &error);

}  // namespace curb::cli
