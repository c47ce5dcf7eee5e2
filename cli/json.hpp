// What --json prints, put together as text: the JSON library stays in config/ and control/.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/load.hpp"

namespace curb::cli::json {

// Values are JSON texts. Bytes that are not UTF-8 (in a file's name) become U+FFFD.
std::string text(std::string_view value);
std::string flag(bool value);
std::string list(const std::vector<std::string> &values);
std::string object(const std::vector<std::pair<const char *, std::string>> &members);

// [{"file":"job.json","line":4,"column":14,"pointer":"/gpu/*/cap","message":"…"}]
std::string diagnostics(const config::Diagnostics &diagnostics);

}  // namespace curb::cli::json
