// Text for answers on the control socket, which have an end (control::kLongestReply): policies and programs can be the
// source of any amount of it.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace curb::shim {

inline std::string shortened(std::string text, std::size_t most) {
    if (text.size() <= most) return text;
    text.resize(most);  // within a character, perhaps: what is no UTF-8 then is replaced when it is written
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
