// The rows of shim/driver/tables/entry_points.def.
#pragma once

#include <string_view>

namespace conformance {

enum class Kind { wrap, pass, call, nvml, libc };

struct Row {
    Kind kind;
    const char *symbol;     // the export
    const char *base = "";  // its name for cuGetProcAddress; empty: it has none here
    int since = 0;
    bool per_thread = false;
};

inline constexpr Row kRows[] = {
#define CURB_WRAP(symbol, base, since, stream, rule) \
    {Kind::wrap, #symbol, base, since, std::string_view(#stream) == "per_thread"},
#define CURB_PASS(symbol, base, since, stream, why) \
    {Kind::pass, #symbol, base, since, std::string_view(#stream) == "per_thread"},
#define CURB_CALL(symbol) {Kind::call, #symbol},
#define CURB_NVML(symbol, rule) {Kind::nvml, #symbol},
#define CURB_LIBC(symbol, why) {Kind::libc, #symbol},
#include "driver/tables/entry_points.def"
};

// Returns null if there is no row.
inline const Row *row_of(std::string_view symbol) {
    for (const Row &row : kRows)
        if (symbol == row.symbol) return &row;
    return nullptr;
}

}  // namespace conformance
