// Splits what a connection sends into lines, for both sides of the control socket. The other side decides what it
// sends, so this keeps at most one line of the longest length and one block.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace curb::control {

class Lines {
  public:
    // `longest`: the most bytes of a line, newline included.
    explicit Lines(std::size_t longest) noexcept : longest_(longest) {}

    // May throw std::bad_alloc, and then takes nothing.
    void take(std::string_view bytes) { bytes_.append(bytes); }
    // Returns the next line once, without its newline. nullopt if it is not complete yet, or too long. May throw
    // std::bad_alloc.
    std::optional<std::string> next();
    // True if the next line is too long. Nothing more can be read from this connection then.
    [[nodiscard]] bool too_long();

  private:
    std::size_t end();

    std::size_t longest_;
    std::string bytes_;
    std::size_t searched_ = 0;  // bytes_ has no newline before this offset
};

}  // namespace curb::control
