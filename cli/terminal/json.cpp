#include "json.hpp"

#include "policy/fields.hpp"

namespace curb::cli::json {

std::string text(std::string_view value) { return policy::json_text(policy::valid_utf8(value)); }

std::string object(const Members &members) {
    return "{" +
           policy::joined(members, ",", [](const auto &one) { return text(one.first) + ":" + one.second.json(); }) +
           "}";
}

std::string text_or_null(std::string_view value) { return value.empty() ? "null" : text(value); }

}  // namespace curb::cli::json
