// Shortens text to `most` bytes and "...", for replies on the control socket, which are limited
// (control::kLongestReply). Policies and programs can supply text of any length.
#pragma once

#include <cstddef>
#include <string>

namespace curb::shim {

inline std::string shortened(std::string text, std::size_t most) {
    if (text.size() <= most) return text;
    text.resize(most);  // may cut a UTF-8 character; the writer replaces invalid bytes
    return text + "...";
}

}  // namespace curb::shim
