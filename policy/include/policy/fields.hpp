// The table of a policy file's fields (fields.def) as a constant to walk over.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace curb::policy {

enum class FieldType : std::uint8_t {
    ignored,  // any string
    version,  // 1
    size,     // "8GiB", "75%"
    report,   // "cap", "device"
    signal,   // "SIGUSR1", "none"
    steps,    // names of release_steps.def, each at most once
    level,    // "trace" … "off"
    path,     // a string
};

struct Field {
    std::string_view pointer;
    FieldType type;
    std::string_view fallback;  // JSON text; empty: none
    std::string_view doc;
};

inline constexpr auto kFields = std::to_array<Field>({
#define CURB_FIELD(pointer, type, member, fallback, doc) {pointer, FieldType::type, fallback, doc},
#include "policy/fields.def"
#undef CURB_FIELD
});

}  // namespace curb::policy
