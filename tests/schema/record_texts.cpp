// Wraps config::parse in the parser's own tests (the linker's --wrap) and writes every text that they parse to the file
// that CURB_RECORD names: its length in decimal, a newline, the text. So the test of the schema uses the parser's
// texts, without a list of its own.
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "config/load.hpp"

using Parsed = curb::policy::Result<curb::config::Document, curb::config::Diagnostics>;

// curb::config::parse(std::string_view, std::string_view), as the linker calls it.
Parsed real_parse(std::string_view json, std::string_view file) asm(
    "__real__ZN4curb6config5parseESt17basic_string_viewIcSt11char_traitsIcEES4_");
Parsed wrapped_parse(std::string_view json, std::string_view file) asm(
    "__wrap__ZN4curb6config5parseESt17basic_string_viewIcSt11char_traitsIcEES4_");

Parsed wrapped_parse(std::string_view json, std::string_view file) {
    static std::FILE *const record = std::fopen(std::getenv("CURB_RECORD"), "wb");
    if (record == nullptr) std::abort();
    std::fprintf(record, "%zu\n", json.size());
    std::fwrite(json.data(), 1, json.size(), record);
    return real_parse(json, file);
}
