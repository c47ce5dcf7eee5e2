// JSON text -> a small tree, for messages. Private to control/.
//
// Beside config's reader of policy files, which has to know places and comments: here a line comes from a program, may
// be meant to do harm, and is either right or refused.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "policy/result.hpp"

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
    // The member of that name; null: there is none, or this is no object.
    [[nodiscard]] const Json *member(std::string_view name) const;
};

struct Json::Member {
    std::string name;
    Json value;
};

// Negative whole numbers become std::int64_t, others std::uint64_t; what neither holds becomes a double. May throw
// std::bad_alloc.
policy::Result<Json, std::string> parse_json(std::string_view text);

}  // namespace curb::control
