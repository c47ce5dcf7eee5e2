// What a connection brings, in whatever pieces -> its lines. Both sides of the control socket read by it: whoever is at
// the other end decides what comes, so no more is kept than a line may be long, and one block.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace curb::control {

class Lines {
  public:
    // `longest`: that a line may be, newline included.
    explicit Lines(std::size_t longest) noexcept : longest_(longest) {}

    // May throw std::bad_alloc; then nothing was taken.
    void take(std::string_view bytes) { bytes_.append(bytes); }
    // The next whole line, without its newline, once; none: it is not there yet, or too long. May throw std::bad_alloc.
    std::optional<std::string> next();
    // What comes next is longer than a line may be: nothing more can be had from this connection.
    [[nodiscard]] bool too_long();

  private:
    std::size_t end();

    std::size_t longest_;
    std::string bytes_;
    std::size_t searched_ = 0;  // of them, in which there is no newline
};

}  // namespace curb::control
