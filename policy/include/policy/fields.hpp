// The fields of a policy file (fields.def) as a table, and the values of a layer by field.
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
    delay,        // "30s", "never"
    flag,         // true, false
    report,       // "cap", "device"
    job_of,       // "tree" … "user"
    share,        // "all", "order", "none"
    signal,       // "SIGUSR1", "none"
    steps,        // names of release_steps.def, each at most once
    environment,  // { "NAME": "value" }
    level,        // "trace" … "off"
    path,         // a string without NUL
    text,         // a string on one line
    pattern,      // a glob
    patterns,     // { "NAME": "glob" }
};

// The value in force if the ceiling and the user's policy both set one.
enum class Holds : std::uint8_t { own, lower, higher };

struct Field {
    std::string_view pointer;
    FieldType type;
    std::string_view least;     // as a file writes it; empty: no minimum
    std::string (*fallback)();  // the default as JSON text; empty if there is none
    Holds holds;
};

// Returns all fields, in the order of the table.
std::span<const Field> fields() noexcept;
// Returns what the field means, on one line. `field`: one of fields().
std::string_view doc_of(const Field &field) noexcept;

// A field that a layer sets, with its value as JSON text.
struct Setting {
    std::string pointer;  // with the key in place of "*": "/gpu/cuda:0/cap"
    std::string value;
    const Field *field;
};
// Returns all fields that the layer sets: first those of its devices, in its order, then the others. Within each group
// the order is that of the table.
std::vector<Setting> settings(const Layer &layer);

// Returns a line for each field that differs: `/gpu/*/cap: "8GiB" -> "4GiB"`, `/release/idle: not set -> "10m"`.
std::vector<std::string> differences(const Layer &before, const Layer &after);

// Write values as a file does.
std::string json_text(const Size &value);
std::string json_text(double value);  // a factor: not negative, to six decimals
std::string json_text(Duration value);
std::string json_text(bool value);
std::string json_text(Report value);
std::string json_text(JobOf value);
std::string json_text(Share value);
std::string json_text(int signal);
std::string json_text(const std::vector<Step> &value);
std::string json_text(const Environment &value);
std::string json_text(LogLevel value);
std::string json_text(const std::string &value);
std::string json_text(std::nullopt_t none);  // empty

}  // namespace curb::policy
