// Builds the JSON that --json prints, as text. The JSON library stays in config/ and control/.
#pragma once

#include <concepts>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "policy/fields.hpp"
#include "policy/values/words.hpp"

namespace curb::cli::json {

// A value as JSON: a whole number, true or false, null for an empty optional. A string must be JSON already.
class Value {
  public:
    template <std::integral T>
    Value(T value) : json_(std::to_string(value)) {}
    Value(bool value) : json_(value ? "true" : "false") {}
    template <std::integral T>
    Value(const std::optional<T> &value) : json_(value ? std::to_string(*value) : "null") {}
    Value(std::string json) : json_(std::move(json)) {}
    Value(const char *json) : json_(json) {}
    [[nodiscard]] const std::string &json() const { return json_; }

  private:
    std::string json_;
};
using Member = std::pair<const char *, Value>;
using Members = std::vector<Member>;

// Returns the JSON of a text. Bytes that are not UTF-8 (in a file's name) become U+FFFD.
inline std::string text(std::string_view value) { return policy::json_text(policy::valid_utf8(value)); }
// Returns the JSON of a text. "null" if it is empty.
inline std::string text_or_null(std::string_view value) { return value.empty() ? "null" : text(value); }
// Returns nanoseconds ("null" if they are not known) in seconds, exactly.
inline std::string seconds_of_ns(std::string ns) {
    constexpr std::size_t kDecimals = 9;
    if (ns == "null") return ns;
    if (ns.size() <= kDecimals) ns.insert(0, kDecimals + 1 - ns.size(), '0');
    ns.insert(ns.size() - kDecimals, 1, '.');
    return ns;
}
// Returns the object. A member whose name ends in _ns has one in seconds beside it: "at_ns" and "at_seconds".
inline std::string object(const Members &members) {
    const auto member = [](const Member &one) {
        const std::string_view name = one.first;
        const std::string json = text(name) + ":" + one.second.json();
        if (!name.ends_with("_ns")) return json;
        return json + "," + text(std::string(name.substr(0, name.size() - 3)) + "_seconds") + ":" +
               seconds_of_ns(one.second.json());
    };
    return "{" + policy::joined(members, ",", member) + "}";
}
// Returns a list of make(one) for each one. Without `make`: each is JSON already.
template <class Each, class Make = std::identity>
std::string list(const Each &each, Make make = {}) {
    return "[" + policy::joined(each, ",", make) + "]";
}
// Returns {"plain":0,"pools":2} of an array indexed by an enumeration.
template <class Enum, class Array, class Name>
std::string object_of(const Array &values, Name name) {
    Members out;
    for (std::size_t i = 0; i < values.size(); ++i) out.emplace_back(name(static_cast<Enum>(i)), values[i]);
    return object(out);
}

}  // namespace curb::cli::json
