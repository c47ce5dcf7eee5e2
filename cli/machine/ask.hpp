// Checks the answers of capped processes for the commands that ask them.
#pragma once

#include <string>
#include <variant>

#include "control/messages.hpp"
#include "control/proc.hpp"
#include "json.hpp"
#include "policy/result.hpp"

namespace curb::cli {

// Returns the report in the answer. The error says why there is none.
template <class Report>
policy::Result<Report, std::string> report_in(int pid, control::Reply reply) {
    if (auto *report = std::get_if<Report>(&reply)) return std::move(*report);
    if (auto *failure = std::get_if<control::Failure>(&reply)) return std::move(failure->message);
    return control::process_text(pid) + " answers something else than was asked";
}
// {"pid":4711,"error":"…"}
inline std::string error_json(int pid, const std::string &error) {
    return json::object({{"pid", std::to_string(pid)}, {"error", json::text(error)}});
}

}  // namespace curb::cli
