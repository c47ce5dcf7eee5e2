#include "control/lines.hpp"

namespace curb::control {

// Returns the offset of the first newline. npos if there is none.
std::size_t Lines::end() {
    const std::size_t found = bytes_.find('\n', searched_);
    searched_ = found == std::string::npos ? bytes_.size() : found;
    return found;
}

std::optional<std::string> Lines::next() {
    const std::size_t length = end();
    if (length >= longest_) return std::nullopt;  // npos too
    std::string out = bytes_.substr(0, length);
    bytes_.erase(0, length + 1);
    searched_ = 0;
    return out;
}

bool Lines::too_long() {
    const std::size_t length = end();
    return length == std::string::npos ? bytes_.size() >= longest_ : length >= longest_;
}

}  // namespace curb::control
