// The figures that tests of the matrix (rows.def) have to reach, and their reports.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>
#include <string_view>

namespace matrix {

enum class Name {
#define CURB_ROW(row, name, figure, nightly, text) name,
#include "rows.def"
#undef CURB_ROW
};

inline bool is_nightly() {
    const char *value = std::getenv("CURB_NIGHTLY");
    return value != nullptr && std::string_view(value) == "1";
}

// Returns the least count that passes.
constexpr std::uint64_t figure(Name name, bool nightly) {
    switch (name) {
#define CURB_ROW(row, name, figure, nightly_figure, text) \
    case Name::name:                                      \
        return nightly ? nightly_figure : figure;
#include "rows.def"
#undef CURB_ROW
    }
    return 0;
}
inline std::uint64_t figure(Name name) { return figure(name, is_nightly()); }

constexpr const char *text(Name name) {
    switch (name) {
#define CURB_ROW(row, name, figure, nightly, text) \
    case Name::name:                               \
        return #name;
#include "rows.def"
#undef CURB_ROW
    }
    return "";
}

// Prints a count, and appends it to a file for this process and name in the folder CURB_MATRIX, if that is set. Counts
// of several tests, and of several reports of one, add up.
inline void report(Name name, std::uint64_t count) {
    std::cout << "matrix: " << text(name) << " " << count << std::endl;
    const char *folder = std::getenv("CURB_MATRIX");
    if (folder == nullptr || *folder == '\0') return;
    std::ofstream(std::string(folder) + "/" + text(name) + "." + std::to_string(::getpid()), std::ios::app)
        << count << "\n";
}

}  // namespace matrix
