// The table of a policy file's fields (fields.def) as a constant to walk over, and what one layer says field by field.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "policy/policy.hpp"

namespace curb::policy {

enum class FieldType : std::uint8_t {
    ignored,      // any string
    version,      // 1
    size,         // "8GiB", "75%"
    factor,       // 1.5
    duration,     // "30s"
    flag,         // true, false
    report,       // "cap", "device"
    signal,       // "SIGUSR1", "none"
    steps,        // names of release_steps.def, each at most once
    environment,  // { "NAME": "value" }
    level,        // "trace" … "off"
    path,         // a string without NUL
    text,         // a string on one line
    pattern,      // a glob
    patterns,     // { "NAME": "glob" }
};

// Where a ceiling and the user's policy both say something, what holds.
enum class Holds : std::uint8_t { own, lower, higher };

struct Field {
    std::string_view pointer;
    FieldType type;
    std::string_view least;     // as the file writes it; empty: none
    std::string (*fallback)();  // the JSON text that means the same as leaving the field out; empty: there is none
    Holds holds;
    std::string_view doc;
};

// In the order of the table.
std::span<const Field> fields() noexcept;

// One thing that a layer says: the field and its JSON text.
struct Setting {
    std::string pointer;  // with the key in place of "*": "/gpu/cuda:0/cap"
    std::string value;
    const Field *field;
};
// All that the layer says, devices in its order, within them and after them in the order of the table.
std::vector<Setting> settings(const Layer &layer);

// What differs, a line each: `/gpu/*/cap: "8GiB" -> "4GiB"`, `/release/idle: not set -> "10m"`.
std::vector<std::string> differences(const Layer &before, const Layer &after);

// Values as a file writes them.
std::string json_text(const Size &value);
std::string json_text(double value);  // a factor: not negative, to six decimals
std::string json_text(Duration value);
std::string json_text(bool value);
std::string json_text(Report value);
std::string json_text(int signal);
std::string json_text(const std::vector<Step> &value);
std::string json_text(const Environment &value);
std::string json_text(LogLevel value);
std::string json_text(const std::string &value);
std::string json_text(std::nullopt_t none);  // empty

}  // namespace curb::policy
