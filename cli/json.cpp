#include "json.hpp"

#include <cstddef>

#include "policy/fields.hpp"

namespace curb::cli::json {
namespace {

// How many bytes at `i` are one character of well-formed UTF-8; 0: none are.
std::size_t character(std::string_view text, std::size_t i) {
    const auto byte = [&](std::size_t at) { return at < text.size() ? static_cast<unsigned char>(text[at]) : 0U; };
    const unsigned lead = byte(i);
    if (lead < 0x80) return 1;
    const std::size_t length = lead >= 0xC2 && lead <= 0xDF ? 2 : lead >= 0xE0 && lead <= 0xEF ? 3 : 4;
    if (lead < 0xC2 || lead > 0xF4) return 0;
    // The second byte excludes overlong forms, surrogates and what lies beyond U+10FFFF.
    const unsigned low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    const unsigned high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    if (byte(i + 1) < low || byte(i + 1) > high) return 0;
    for (std::size_t k = 2; k < length; ++k)
        if (byte(i + k) < 0x80 || byte(i + k) > 0xBF) return 0;
    return length;
}

std::string joined(const std::vector<std::string> &values) {
    std::string out;
    for (const std::string &value : values) out += (out.empty() ? "" : ",") + value;
    return out;
}

}  // namespace

std::string text(std::string_view value) {
    std::string clean;
    for (std::size_t i = 0; i < value.size();) {
        const std::size_t length = character(value, i);
        clean += length == 0 ? "\xEF\xBF\xBD" : value.substr(i, length);
        i += length == 0 ? 1 : length;
    }
    return policy::json_text(clean);
}

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
