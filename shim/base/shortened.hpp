// Shortens text for replies on the control socket, which are limited (control::kLongestReply). Policies and programs
// can supply text of any length.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace curb::shim {

inline std::string shortened(std::string text, std::size_t most) {
    if (text.size() <= most) return text;
    text.resize(most);  // may cut a UTF-8 character; the writer replaces invalid bytes
    return text + "...";
}

inline void shorten(std::vector<std::string> &lines) {
    constexpr std::size_t kLines = 100, kLength = 500;
    const std::size_t all = lines.size();
    if (all > kLines) lines.resize(kLines);
    for (std::string &line : lines) line = shortened(std::move(line), kLength);
    if (all > kLines) lines.push_back("and " + std::to_string(all - kLines) + " more");
}

}  // namespace curb::shim
