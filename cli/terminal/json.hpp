// Builds the JSON that --json prints, as text. The JSON library stays in config/ and control/.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "policy/words.hpp"

namespace curb::cli::json {

using Members = std::vector<std::pair<const char *, std::string>>;

// Values are JSON texts. Bytes that are not UTF-8 (in a file's name) become U+FFFD.
std::string text(std::string_view value);
std::string flag(bool value);
std::string object(const Members &members);
// A list of make(one) for each one.
template <class Each, class Make>
std::string list(const Each &each, Make make) {
    return "[" + policy::joined(each, ",", make) + "]";
}
// {"plain":0,"pools":2}: an array with a place for each value of an enumeration.
template <class Enum, class Array, class Name>
std::string object_of(const Array &values, Name name) {
    Members out;
    for (std::size_t i = 0; i < values.size(); ++i)
        out.emplace_back(name(static_cast<Enum>(i)), std::to_string(values[i]));
    return object(out);
}
// null for an empty text or no number.
std::string text_or_null(std::string_view value);
template <class Number>
std::string number_or_null(const std::optional<Number> &value) {
    return value ? std::to_string(*value) : "null";
}

}  // namespace curb::cli::json
