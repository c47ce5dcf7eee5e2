#include "json.hpp"

#include "policy/fields.hpp"
#include "policy/words.hpp"

namespace curb::cli::json {
namespace {

std::string joined(const std::vector<std::string> &values) {
    std::string out;
    for (const std::string &value : values) out += (out.empty() ? "" : ",") + value;
    return out;
}

}  // namespace

std::string text(std::string_view value) { return policy::json_text(policy::valid_utf8(value)); }

std::string flag(bool value) { return value ? "true" : "false"; }

std::string list(const std::vector<std::string> &values) { return "[" + joined(values) + "]"; }

std::string object(const std::vector<std::pair<const char *, std::string>> &members) {
    std::vector<std::string> out;
    for (const auto &[name, value] : members) out.push_back(text(name) + ":" + value);
    return "{" + joined(out) + "}";
}

std::string diagnostics(const config::Diagnostics &diagnostics) {
    std::vector<std::string> out;
    for (const config::Diagnostic &one : diagnostics)
        out.push_back(object({{"file", text(one.file)},
                              {"line", std::to_string(one.line)},
                              {"column", std::to_string(one.column)},
                              {"pointer", text(one.pointer)},
                              {"message", text(one.message)}}));
    return list(out);
}

}  // namespace curb::cli::json
