// Rows, rules and where values come from, as people and programs read them.
#include <algorithm>
#include <string_view>
#include <utility>

#include "json.hpp"
#include "policy/words.hpp"
#include "policy_rows.hpp"
#include "text_width.hpp"

namespace curb::cli {
namespace {

// A string of one plain word without its quotes, as people type it, and a list of such words without its brackets; any
// other value as JSON.
std::string as_typed(const std::string &value) {
    if (value.empty()) return "-";
    const bool is_word = value.size() > 2 && value.front() == '"' && value.find_first_of(" \\,") == std::string::npos;
    if (is_word) return value.substr(1, value.size() - 2);
    if (value.front() != '[' || value == "[]") return value;
    std::string words = value.substr(1, value.size() - 2);
    std::erase(words, '"');
    return words;
}

// What the rows of one block have in common: `gpu "cuda:0"`, "release"; and how much of their pointers that is.
struct Heading {
    std::string text;
    std::size_t length;
};
Heading heading(const Row &row) {
    const std::string_view pattern = row.field->pointer;
    const std::string section(pattern.substr(1, pattern.find('/', 1) - 1));
    if (!pattern.starts_with("/gpu/*/")) return {section, section.size() + 2};
    const std::size_t rest = pattern.size() - std::string_view("/gpu/*").size();
    const std::size_t length = row.pointer.size() - rest;
    return {section + " " + policy::quote(row.pointer.substr(5, length - 5), '"'), length + 1};
}

// {"file":"job.json","line":7,"column":14} with the members before it.
std::string at(json::Members members, const config::Place &place) {
    members.emplace_back("file", json::text(place.file));
    members.emplace_back("line", place.line);
    members.emplace_back("column", place.column);
    return json::object(members);
}

// The settings of a rule, each with its place.
struct Saying {
    policy::Setting setting;
    config::Place place;
};
std::vector<Saying> sayings(const config::Document &document, const policy::Rule &rule) {
    const std::string prefix = "/rules/" + std::to_string(&rule - document.file.rules.data());
    std::vector<Saying> out;
    for (policy::Setting &setting : policy::settings(rule.over)) {
        const auto place = document.places.find(prefix + setting.pointer);
        out.push_back({std::move(setting), place == document.places.end() ? config::Place() : place->second});
    }
    return out;
}

}  // namespace

std::string Origin::text() const {
    switch (kind) {
        case Kind::fallback: return "default";
        case Kind::variable: return "CURB_CAP";
        case Kind::file:
        case Kind::ceiling: break;
    }
    std::string more = kind == Kind::ceiling ? "ceiling" : "";
    if (!rule.empty()) more += (more.empty() ? "" : ", ") + rule;
    return place.text() + (more.empty() ? "" : " (" + more + ")");
}

std::string Origin::json_text() const {
    switch (kind) {
        case Kind::fallback: return json::object({{"kind", json::text("default")}});
        case Kind::variable: return json::object({{"kind", json::text("CURB_CAP")}});
        case Kind::file:
        case Kind::ceiling: break;
    }
    return at({{"kind", json::text(kind == Kind::file ? "file" : "ceiling")}, {"rule", json::text_or_null(rule)}},
              place);
}

std::string Bound::text() const {
    // That the ceiling's place is one goes without saying here.
    const std::string by = origin.kind == Origin::Kind::ceiling
                               ? origin.place.text() + (origin.rule.empty() ? "" : " (" + origin.rule + ")")
                               : origin.text();
    return std::string(holds) + (std::string_view(holds) == "overridden" ? ": " : " ") + as_typed(value) + " by " + by;
}

std::string text(const std::vector<Row> &rows) {
    std::vector<std::vector<std::string>> lines;
    std::string last;
    for (const Row &row : rows) {
        const auto [block, length] = heading(row);
        if (block != last) lines.push_back({block});
        last = block;
        lines.push_back({"  " + row.pointer.substr(length), as_typed(row.value),
                         policy::joined(row.origins, ", ", &Origin::text),
                         policy::joined(row.bounds, ", ", &Bound::text)});
    }
    return aligned(lines);
}

std::string json_text(const std::vector<Row> &rows) {
    const auto bound_json = [](const Bound &bound) {
        return json::object(
            {{"holds", json::text(bound.holds)}, {"value", bound.value}, {"source", bound.origin.json_text()}});
    };
    return json::list(rows, [&](const Row &row) {
        return json::object({{"pointer", json::text(row.pointer)},
                             {"value", row.value.empty() ? "null" : row.value},
                             {"sources", json::list(row.origins, &Origin::json_text)},
                             {"bounds", json::list(row.bounds, bound_json)}});
    });
}

std::string text(const config::Document &document, const policy::Rule &rule) {
    std::vector<std::vector<std::string>> lines;
    for (const auto &[setting, place] : sayings(document, rule))
        lines.push_back({"    " + setting.pointer, as_typed(setting.value), place.text()});
    return aligned(lines);
}

std::string json_text(const config::Document &document, const policy::Rule &rule) {
    return json::list(sayings(document, rule), [](const Saying &one) {
        return at({{"pointer", json::text(one.setting.pointer)}, {"value", one.setting.value}}, one.place);
    });
}

std::string text(const policy::Match &match) {
    std::string out;
    const auto add = [&](const std::string &what, const std::string &pattern) {
        out += (out.empty() ? "" : ", ") + what + " " + policy::quote(pattern, '"');
    };
    if (match.exe) add("exe", *match.exe);
    if (match.args) add("args", *match.args);
    if (match.user) add("user", *match.user);
    for (const auto &[name, pattern] : match.env.value_or(policy::Environment{})) add("env " + name, pattern);
    return out.empty() ? "every process" : out;
}

std::string json_text(const policy::Match &match) {
    json::Members out;
    if (match.exe) out.emplace_back("exe", json::text(*match.exe));
    if (match.args) out.emplace_back("args", json::text(*match.args));
    if (match.user) out.emplace_back("user", json::text(*match.user));
    if (match.env) out.emplace_back("env", policy::json_text(*match.env));
    return json::object(out);
}

}  // namespace curb::cli
