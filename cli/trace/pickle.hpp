// Reads a pickle of Python as data: texts, numbers, lists and dictionaries.
//
// A pickle is a program that can call any function of Python. This reader has no functions: it refuses every opcode
// that names, calls or builds anything. Pure; any bytes are read or refused.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "policy/result.hpp"

namespace curb::cli {

class Pickle {
  public:
    using Id = std::uint32_t;  // of a value, in values_

    enum class Type : std::uint8_t { none, boolean, integer, real, text, list, dictionary };
    struct Value {
        Type type = Type::none;
        std::int64_t integer = 0;  // boolean: 0 or 1; the lowest 64 bits of a longer one
        double real = 0;
        std::string_view text{};  // of the bytes that were read; bytes count as text
        std::vector<Id> items{};  // of a list or tuple; of a dictionary its keys and values in turns
    };

    // `bytes` must live as long as the result. The error is a sentence without the file's name.
    static policy::Result<Pickle, std::string> read(std::string_view bytes);

    [[nodiscard]] const Value &root() const { return values_[root_]; }
    [[nodiscard]] const Value &operator[](Id id) const { return values_[id]; }
    // Returns the member of a dictionary by its name; a value of type none if there is none, or among the first 64.
    [[nodiscard]] const Value &member(const Value &dictionary, std::string_view name) const;

  private:
    friend class Unpickler;
    std::vector<Value> values_{Value()};  // the first is None
    Id root_ = 0;
};

}  // namespace curb::cli
