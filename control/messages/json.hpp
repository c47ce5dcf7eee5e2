// Reads JSON text of messages into a small tree. Private to control/.
//
// Unlike config's reader of policy files it knows no places and no comments. A line comes from a program, perhaps a
// hostile one, and is either right or refused.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "policy/values/result.hpp"

namespace curb::control {

struct Json {
    using Array = std::vector<Json>;
    struct Member;
    using Object = std::vector<Member>;  // no name twice
    std::variant<std::nullptr_t, bool, std::uint64_t, std::int64_t, double, std::string, Array, Object> value;

    template <class T>
    [[nodiscard]] const T *get() const {
        return std::get_if<T>(&value);
    }
    // Returns the member of that name. null if there is none, or if this is no object.
    [[nodiscard]] const Json *member(std::string_view name) const;
};

struct Json::Member {
    std::string name;
    Json value;
};

// Negative whole numbers become std::int64_t, others std::uint64_t; numbers that neither holds become double. May throw
// std::bad_alloc.
policy::Result<Json, std::string> parse_json(std::string_view text);

}  // namespace curb::control
