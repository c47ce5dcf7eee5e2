// Reads a pickle of Python as data: texts, numbers, lists and dictionaries.
//
// A pickle is a program that can call any Python function. This reader refuses every opcode that names, calls or builds
// anything. Pure. Safe for any input.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "policy/values/result.hpp"

namespace curb::cli {

class Pickle {
  public:
    using Id = std::uint32_t;  // index into values_

    enum class Type : std::uint8_t { none, boolean, integer, real, text, list, dictionary };
    struct Value {
        Type type = Type::none;
        std::int64_t integer = 0;  // boolean: 0 or 1; of a longer integer the lowest 64 bits
        double real = 0;
        std::string_view text{};  // points into the input; bytes objects count as text
        std::vector<Id> items{};  // of a list or tuple; of a dictionary its keys and values in turn
    };

    // `bytes` must outlive the result. The error is a sentence without the file's name.
    static policy::Result<Pickle, std::string> read(std::string_view bytes);

    [[nodiscard]] const Value &root() const { return values_[root_]; }
    [[nodiscard]] const Value &operator[](Id id) const { return values_[id]; }
    // Returns the member of a dictionary with this name. Returns a value of type none if it is not among the first 64.
    [[nodiscard]] const Value &member(const Value &dictionary, std::string_view name) const;

  private:
    friend class Unpickler;
    std::vector<Value> values_{Value()};  // the first is None
    Id root_ = 0;
};

}  // namespace curb::cli
