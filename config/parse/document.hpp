// Reads JSON text into a tree with the place of each key and value. Private to config/.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "policy/values/result.hpp"

namespace curb::config {

struct Node {
    enum class Kind { null, boolean, number, string, object, array };
    Kind kind = Kind::null;
    std::size_t at = 0;          // offset of the value's first byte
    std::string text;            // a string's content; of other scalars their text ("1.0", "true")
    double number = 0;           // a number's value
    std::string key;             // if the parent is an object
    std::size_t key_at = 0;      // offset of the key's opening quote
    std::vector<Node> children;  // of an object or an array, in the order of the text, duplicates included
};

// An error in the text.
struct Fault {
    std::size_t at = 0;
    std::string pointer;
    std::string message;
};

// Turns offsets into lines and columns. Both count from 1, columns in bytes (a tab is one).
class Lines {
  public:
    struct Place {
        unsigned line;
        unsigned column;
        [[nodiscard]] std::string text() const;  // "3:10"
    };
    explicit Lines(std::string_view text);
    [[nodiscard]] Place place(std::size_t offset) const;

  private:
    std::vector<std::size_t> starts_;
};

// The deepest nesting of objects and arrays.
inline constexpr std::size_t kDepth = 32;

// Reads JSON (RFC 8259) with // and /* */ comments. May throw std::bad_alloc.
policy::Result<Node, Fault> read_document(std::string_view text);

}  // namespace curb::config
