// Checks of config::parse for any text: it returns a policy, or errors with places inside the text; and a policy that
// is written back parses to the same.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/load.hpp"
#include "policy/fields.hpp"

namespace curb::fuzz {

inline constexpr std::string_view kName = "job.json";

// True if line and column are those of a byte of the text, or of its end.
inline bool is_inside(std::string_view text, unsigned line, unsigned column) {
    if (line == 0 || column == 0) return false;
    for (; line > 1; --line) {
        const std::size_t end = text.find('\n');
        if (end == std::string_view::npos) return false;
        text.remove_prefix(end + 1);
    }
    return column <= std::min(text.find('\n'), text.size()) + 1;
}

// Returns what is wrong with the diagnostics; empty if nothing is.
inline std::string unsound(std::string_view text, const config::Diagnostics &diagnostics) {
    std::pair last(0U, 0U);
    for (const config::Diagnostic &one : diagnostics) {
        const std::pair place(one.line, one.column);
        if (one.file != kName) return "another file's name: " + one.file;
        if (one.message.empty()) return "no message";
        if (one.text().find('\n') != std::string::npos) return "more than one line: " + one.text();
        if (!is_inside(text, one.line, one.column)) return "a place outside the text: " + one.text();
        if (place < last) return "not in the order of the text: " + one.text();
        last = place;
    }
    return {};
}

// A JSON object of fields, each set by its pointer.
class Written {
  public:
    void set(std::string_view pointer, const std::string &value) {
        pointer.remove_prefix(1);
        const std::size_t slash = pointer.find('/');
        Written &member = member_named(pointer.substr(0, slash));
        if (slash == std::string_view::npos) {
            member.value_ = value;
        } else {
            member.set(pointer.substr(slash), value);
        }
    }
    [[nodiscard]] std::string json() const {
        if (!value_.empty()) return value_;
        std::string out;
        for (const Written &member : members_)
            out += (out.empty() ? "" : ", ") + policy::json_text(member.name_) + ": " + member.json();
        return "{" + out + "}";
    }

  private:
    Written &member_named(std::string_view name) {
        for (Written &member : members_)
            if (member.name_ == name) return member;
        members_.emplace_back().name_ = name;
        return members_.back();
    }

    std::string name_;
    std::string value_;  // of a field
    std::vector<Written> members_;
};

inline std::string written_back(const policy::File &file) {
    Written whole;
    whole.set("/version", "1");
    for (const policy::Setting &setting : policy::settings(file.base)) whole.set(setting.pointer, setting.value);
    std::string rules;
    for (const policy::Rule &rule : file.rules) {
        Written one;
        one.set("/match", "");
        if (rule.name) one.set("/name", policy::json_text(*rule.name));
        if (rule.match.exe) one.set("/match/exe", policy::json_text(*rule.match.exe));
        if (rule.match.args) one.set("/match/args", policy::json_text(*rule.match.args));
        if (rule.match.user) one.set("/match/user", policy::json_text(*rule.match.user));
        if (rule.match.env) one.set("/match/env", policy::json_text(*rule.match.env));
        for (const policy::Setting &setting : policy::settings(rule.over)) one.set(setting.pointer, setting.value);
        rules += (rules.empty() ? "" : ", ") + one.json();
    }
    if (!rules.empty()) whole.set("/rules", "[" + rules + "]");
    return whole.json();
}

// Returns the file without devices that set nothing: these are not written back.
inline policy::File without_silent_devices(policy::File file) {
    const auto silent = [](const policy::GpuRule &rule) { return rule.policy == policy::GpuPolicy{}; };
    std::erase_if(file.base.gpu, silent);
    for (policy::Rule &rule : file.rules) std::erase_if(rule.over.gpu, silent);
    return file;
}

// Returns what is wrong with the places of a document; empty if each is inside the text and each setting has one.
inline std::string misplaced(std::string_view text, const config::Document &document) {
    for (const auto &[pointer, place] : document.places)
        if (place.file != kName || !is_inside(text, place.line, place.column)) return "place of " + pointer;
    const auto first_without = [&](const std::string &before, const policy::Layer &layer) -> std::string {
        for (const policy::Setting &setting : policy::settings(layer))
            if (!document.places.contains(before + setting.pointer)) return "no place of " + before + setting.pointer;
        return {};
    };
    std::string wrong = first_without("", document.file.base);
    for (std::size_t i = 0; i < document.file.rules.size() && wrong.empty(); ++i)
        wrong = first_without("/rules/" + std::to_string(i), document.file.rules[i].over);
    return wrong;
}

// Returns the check that the text fails; empty if none.
inline std::string broken(std::string_view text) {
    const auto answer = config::parse(text, kName);
    if (!answer) return answer.error().empty() ? "neither a policy nor a word of why" : unsound(text, answer.error());

    if (std::string wrong = misplaced(text, *answer); !wrong.empty()) return wrong;
    const auto again = config::parse(text, kName);
    if (!again || again->file != answer->file) return "read a second time it says something else";
    const std::string json = written_back(answer->file);
    const auto back = config::parse(json, kName);
    if (!back) return "written back it is wrong: " + json + ": " + back.error().front().text();
    if (back->file != without_silent_devices(answer->file)) return "written back it says something else: " + json;
    return {};
}

}  // namespace curb::fuzz
