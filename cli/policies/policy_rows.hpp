// The fields of a policy with their values and sources, as `curb policy show` and `explain` print them.
#pragma once

#include <string>
#include <vector>

#include "config/load.hpp"
#include "policy/fields.hpp"

namespace curb::cli {

// The source of a value.
struct Origin {
    enum class Kind { fallback, file, variable, ceiling };
    Kind kind = Kind::fallback;
    config::Place place;   // of file and ceiling
    std::string rule;      // "rule 2 \"bert\"", if it stands in one
    std::string variable;  // "CURB_CAP"

    // Returns "default", "job.json:20:14 (rule 2 \"bert\")", "CURB_CAP", "/etc/curb/policy.json:4:10 (ceiling)".
    [[nodiscard]] std::string text() const;
    [[nodiscard]] std::string json_text() const;
};

// A limit that another source puts on the same field.
struct Bound {
    const char *holds;  // "at most", "at least"; "overridden": it has no effect
    std::string value;  // JSON
    Origin origin;

    // Returns "at most 20GiB by /etc/curb/policy.json:5:16".
    [[nodiscard]] std::string text() const;
};

struct Row {
    std::string pointer;  // "/gpu/cuda:0/cap"
    const policy::Field *field;
    std::string value;            // JSON; empty: there is none
    std::vector<Origin> origins;  // several only for the environment, to which several places can add
    std::vector<Bound> bounds;
};

// Returns a row for every field: for each key of a device ("*" if there is none), then for the process. A key's rows
// include the values of less specific keys. `outcome` has the rules that apply.
std::vector<Row> rows(const config::Reading &reading, const config::Outcome &outcome, const config::Source &source);
// True if no source sets the field.
bool is_default(const Row &row);

// Returns the rows as a table, in blocks whose pointers begin alike.
std::string text(const std::vector<Row> &rows);
std::string json_text(const std::vector<Row> &rows);

// Returns the settings of a rule, each with its place.
std::string text(const config::Document &document, const policy::Rule &rule);
std::string json_text(const config::Document &document, const policy::Rule &rule);

// Returns the condition of a rule: `exe python3*, args *bert*`, or "every process".
std::string text(const policy::Match &match);
std::string json_text(const policy::Match &match);

}  // namespace curb::cli
