#include "diagnostic.hpp"

#include <algorithm>

#include "policy/values/words.hpp"

namespace curb::config {

std::string Place::text() const { return file + ":" + std::to_string(line) + ":" + std::to_string(column); }

std::string Diagnostic::text() const {
    std::string out = line == 0 ? file : Place{file, line, column}.text();
    if (!pointer.empty()) out += ": " + policy::one_line(pointer);
    return out + ": " + message;
}

bool is_for_want_of_memory(const Diagnostics &diagnostics) noexcept {
    return diagnostics.empty() ||
           std::any_of(diagnostics.begin(), diagnostics.end(), [](const Diagnostic &one) { return one.no_memory; });
}

Diagnostics out_of_memory(std::string_view file) noexcept {
    try {
        return {{std::string(file), 0, 0, {}, "there is too little memory to read it", true, true}};
    } catch (...) {
        return {};
    }
}

}  // namespace curb::config
