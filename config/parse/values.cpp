#include "values.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "policy/fields.hpp"
#include "policy/names.hpp"
#include "policy/values/words.hpp"

namespace curb::config {
namespace {

using policy::is_digit;
using policy::quote;
using Kind = Node::Kind;

// Sets `member` to the parsed string, or adds the error.
template <class Parse, class Member>
void take(Faults &faults, const Value &value, const char *right, Parse parse, std::optional<Member> &member) {
    if (value.node.kind != Kind::string) return faults.wrong_kind(value, right);
    if (auto parsed = parse(value.node.text)) {
        member = *parsed;
    } else {
        faults.add(value.node.at, value.pointer, parsed.error());
    }
}

bool is_negative(const Node &node) { return node.kind == Kind::number && node.text.front() == '-'; }

// Clears a member that is below the least, and adds the fault.
template <class Member>
void at_least(Faults &faults, const Value &value, std::string_view least, bool below, std::optional<Member> &member) {
    if (!below) return;
    const Node &node = value.node;
    const std::string written = node.kind == Kind::string ? quote(node.text) : node.text;
    faults.add(node.at, value.pointer, written + " is too little; the least is " + std::string(least));
    member.reset();
}

// Returns a factor, rounded to six decimals. nullopt if the text is no number, or too large for a double. (Not by
// std::from_chars, whose tables would make libcurb.so a tenth larger.)
std::optional<double> number(std::string_view text) {
    if (text.ends_with('.')) text.remove_suffix(1);  // "2.", which people write and JSON does not
    const auto parsed = read_document(text);
    if (!parsed || parsed->kind != Kind::number) return std::nullopt;
    const double written = parsed->number;
    if (written < 0 || written > kLargestFactor) return written;
    const std::uint64_t millionths = static_cast<std::uint64_t>(written * 2e6 + 1) / 2;  // rounded
    return static_cast<double>(millionths) / 1e6;
}

bool is_factor(double number, double least) { return number >= least && number <= kLargestFactor; }

// Reads a string without NUL, which C's strings cannot hold.
void read_string(Faults &faults, const Value &value, const char *right, const char *without_nul,
                 std::optional<std::string> &member) {
    if (value.node.kind != Kind::string) return faults.wrong_kind(value, right);
    if (value.node.text.find('\0') != std::string::npos) return faults.add(value.node.at, value.pointer, without_nul);
    member = value.node.text;
}

// Returns why a variable cannot have this name. Empty if it can.
std::string wrong_name(std::string_view name) {
    const auto is_letter = [](char c) { return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_'; };
    const bool right = !name.empty() && !is_digit(name.front()) &&
                       std::all_of(name.begin(), name.end(), [&](char c) { return is_letter(c) || is_digit(c); });
    if (right) return {};
    return quote(name, '"') + " is not the name of an environment variable: letters, digits and '_', no digit first";
}

// Returns why a policy may not set this variable. Empty if it may.
std::string barred_name(std::string_view name) {
    if (name.starts_with("LD_"))
        return quote(name, '"') +
               " cannot be set here: variables that begin with LD_ decide what is loaded before "
               "main, curb itself too";
    if (name.starts_with("CURB_"))
        return quote(name, '"') +
               " cannot be set here: variables that begin with CURB_ decide how curb itself is "
               "loaded and which policy it reads";
    return {};
}

// Reads an object of variables, each with a text.
template <class Wrong>
void read_variables(Faults &faults, const Value &value, const char *right, const char *right_value, Wrong wrong,
                    std::optional<policy::Environment> &member) {
    if (value.node.kind != Kind::object) return faults.wrong_kind(value, right);
    member.emplace();
    each_member(value, faults, [&](const Value &variable) {
        if (std::string message = wrong(variable.node.key); !message.empty())
            faults.add(variable.node.key_at, variable.pointer, std::move(message));
        std::optional<std::string> text;
        read_string(faults, variable, right_value, "the value of a variable holds no NUL", text);
        if (text) (*member)[variable.node.key] = std::move(*text);
    });
}

void read_time(Faults &faults, const Value &value, std::string_view least,
               policy::Result<policy::Duration, std::string> (*parse)(std::string_view),
               std::optional<policy::Duration> &member) {
    const Node &node = value.node;
    if (is_negative(node)) return faults.add(node.at, value.pointer, node.text + ": times are not negative");
    if (node.kind == Kind::number && parse(node.text + "s"))
        return faults.wrong_kind(value, "a time is a string with a unit", "; write \"" + node.text + "s\"");
    take(faults, value, R"(a time is a string with a unit, as in "30s")", parse, member);
    if (!member || least.empty()) return;
    at_least(faults, value, least, *member < policy::parse_duration(least).value(), member);
}

}  // namespace

void read_ignored(Faults &faults, const Value &value) {
    if (value.node.kind != Kind::string) faults.wrong_kind(value, "this is a string");
}

void read_version(Faults &faults, const Value &value) {
    const Node &node = value.node;
    if (node.kind == Kind::number && node.text == "1") return;
    if (node.kind == Kind::number && node.text.find_first_of(".eE") == std::string::npos) {
        return faults.add(node.at, value.pointer, "version " + node.text + " is not known; this curb reads version 1");
    }
    faults.wrong_kind(value, "the version is written 1");
}

void read_size(Faults &faults, const Value &value, std::string_view least, std::optional<policy::Size> &member) {
    if (is_negative(value.node))
        return faults.add(value.node.at, value.pointer, value.node.text + ": sizes are not negative");
    take(faults, value, R"(a size is a string with a unit, as in "8GiB" or "75%")", policy::parse_size, member);
    if (!member || least.empty()) return;
    const policy::Size bound = policy::parse_size(least).value();
    // The device is not known yet, so only a share of 0% is below a least in bytes.
    const bool below = member->unit == bound.unit ? member->amount < bound.amount : member->amount == 0;
    at_least(faults, value, least, below, member);
}

void read_factor(Faults &faults, const Value &value, std::string_view least, std::optional<double> &member) {
    const Node &node = value.node;
    const auto written = number(node.text);
    const double bound = number(least).value();
    if (node.kind != Kind::number || !written) {
        const bool meant = written && is_factor(*written, bound);
        return faults.wrong_kind(value, "a factor is a number, as in 1.5",
                                 meant ? "; did you mean " + policy::json_text(*written) + "?" : "");
    }
    if (*written > kLargestFactor)
        return faults.add(node.at, value.pointer, node.text + " is too large a factor; the largest is 100");
    member = *written;
    at_least(faults, value, least, *written < bound, member);
}

void read_duration(Faults &faults, const Value &value, std::string_view least,
                   std::optional<policy::Duration> &member) {
    read_time(faults, value, least, policy::parse_duration, member);
}

void read_delay(Faults &faults, const Value &value, std::string_view least, std::optional<policy::Duration> &member) {
    read_time(faults, value, least, policy::parse_delay, member);
}

void read_flag(Faults &faults, const Value &value, std::string_view /*least*/, std::optional<bool> &member) {
    const Node &node = value.node;
    if (node.kind == Kind::boolean) {
        member = node.text == "true";
        return;
    }
    constexpr std::array<std::string_view, 4> kYes{"true", "yes", "on", "1"};
    constexpr std::array<std::string_view, 4> kNo{"false", "no", "off", "0"};
    const std::string word = policy::lower_case(node.text);
    const auto is_in = [&](const auto &words) { return std::find(words.begin(), words.end(), word) != words.end(); };
    faults.wrong_kind(value, "this is true or false",
                      is_in(kYes)  ? "; did you mean true?"
                      : is_in(kNo) ? "; did you mean false?"
                                   : "");
}

void read_report(Faults &faults, const Value &value, std::string_view /*least*/,
                 std::optional<policy::Report> &member) {
    take(faults, value, R"(what is reported is "cap" or "device")", policy::parse_report, member);
}

void read_job_of(Faults &faults, const Value &value, std::string_view /*least*/, std::optional<policy::JobOf> &member) {
    take(faults, value, R"(what is a job is "tree", "cgroup", "slurm" or "user")", policy::parse_job_of, member);
}

void read_share(Faults &faults, const Value &value, std::string_view /*least*/, std::optional<policy::Share> &member) {
    take(faults, value, R"(what others see is "all", "order" or "none")", policy::parse_share, member);
}

void read_signal(Faults &faults, const Value &value, std::string_view /*least*/, std::optional<int> &member) {
    take(faults, value, R"(a signal is a name, as in "SIGUSR1" or "none")", policy::parse_signal, member);
}

void read_steps(Faults &faults, const Value &value, std::string_view /*least*/,
                std::optional<std::vector<policy::Step>> &member) {
    if (value.node.kind != Kind::array) {
        return faults.wrong_kind(value, R"(the steps are an array of names, as in ["pools"])");
    }
    member.emplace();
    for (std::size_t i = 0; i < value.node.children.size() && !faults.full(); ++i) {
        const std::string token = "/" + std::to_string(i);
        const Value item{value.node.children[i], value.pointer + token, value.place + token};
        std::optional<policy::Step> step;
        take(faults, item, "a step is a name", policy::parse_step, step);
        if (!step) continue;
        if (std::find(member->begin(), member->end(), *step) != member->end()) {
            faults.add(item.node.at, item.pointer, "the step " + quote(item.node.text, '"') + " stands here twice");
        }
        member->push_back(*step);
    }
}

void read_environment(Faults &faults, const Value &value, std::string_view /*least*/,
                      std::optional<policy::Environment> &member) {
    const auto wrong = [](std::string_view name) {
        const std::string barred = barred_name(name);
        return barred.empty() ? wrong_name(name) : barred;
    };
    read_variables(faults, value, R"(the variables are an object, as in { "NAME": "value" })",
                   "the value of a variable is a string", wrong, member);
}

void read_level(Faults &faults, const Value &value, std::string_view /*least*/,
                std::optional<policy::LogLevel> &member) {
    take(faults, value, R"(a log level is a name, as in "warning")", policy::parse_log_level, member);
}

void read_path(Faults &faults, const Value &value, std::string_view /*least*/, std::optional<std::string> &member) {
    read_string(faults, value, "a path is a string", "a path holds no NUL", member);
}

void read_text(Faults &faults, const Value &value, std::string_view /*least*/, std::optional<std::string> &member) {
    const Node &node = value.node;
    if (node.kind != Kind::string) return faults.wrong_kind(value, "a name is a string");
    if (policy::one_line(node.text) != node.text)
        return faults.add(node.at, value.pointer, "a name stands on one line, without control characters");
    member = node.text;
}

void read_pattern(Faults &faults, const Value &value, std::string_view /*least*/, std::optional<std::string> &member) {
    read_string(faults, value, R"(a pattern is a string, as in "python3*")", "a pattern holds no NUL", member);
}

void read_patterns(Faults &faults, const Value &value, std::string_view /*least*/,
                   std::optional<policy::Environment> &member) {
    read_variables(faults, value, R"(these are variables with a pattern each, as in { "NAME": "bert*" })",
                   "a pattern is a string", wrong_name, member);
}

}  // namespace curb::config
