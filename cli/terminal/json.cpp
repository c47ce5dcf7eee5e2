#include "json.hpp"

#include "policy/fields.hpp"

namespace curb::cli::json {

std::string text(std::string_view value) { return policy::json_text(policy::valid_utf8(value)); }

std::string flag(bool value) { return value ? "true" : "false"; }

std::string object(const Members &members) {
    return "{" + policy::joined(members, ",", [](const auto &one) { return text(one.first) + ":" + one.second; }) + "}";
}

std::string text_or_null(std::string_view value) { return value.empty() ? "null" : text(value); }

std::string diagnostics(const config::Diagnostics &diagnostics) {
    return list(diagnostics, [](const config::Diagnostic &one) {
        return object({{"file", text(one.file)},
                       {"line", std::to_string(one.line)},
                       {"column", std::to_string(one.column)},
                       {"pointer", text(one.pointer)},
                       {"message", text(one.message)}});
    });
}

}  // namespace curb::cli::json
