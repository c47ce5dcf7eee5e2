// A policy file's tree -> policy::Policy, along the table of fields (policy/fields.def): whatever the table does not
// name is an unknown key, and each field is read by the function read_TYPE below.
#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "config/load.hpp"
#include "diagnostic.hpp"
#include "document.hpp"
#include "policy/fields.hpp"
#include "policy/names.hpp"
#include "policy/words.hpp"

namespace curb::config {
namespace {

using policy::quote;
using Kind = Node::Kind;

// One thing that a policy file says, where it stands.
struct Value {
    const Node &node;
    const std::string &pointer;
};

std::string shown(const Node &node) {
    switch (node.kind) {
        case Kind::null: return "null";
        case Kind::boolean: return node.text;
        case Kind::number: return "the number " + node.text;
        case Kind::string: return "the string " + quote(node.text, '"');
        case Kind::object: return "an object";
        case Kind::array: return "an array";
    }
    return "?";
}

class Reader {
  public:
    Reader(std::string_view text, std::string_view file, policy::Policy &into)
        : lines_(text), file_(file), policy_(into) {}

    void read(const Node &root);
    // In the order of the text; none: the policy is right.
    Diagnostics diagnostics() &&;

    void fault(std::size_t at, const std::string &pointer, std::string message);

  private:
    void wrong_kind(const Value &value, const std::string &right);

    void read_object(const Value &object, const std::string &pattern, policy::GpuPolicy &gpu);
    void read_member(const Value &member, const std::string &pattern, policy::GpuPolicy &gpu);
    void read_gpu(const Value &rule, const std::string &pattern);
    void one_rule_each(const policy::GpuKey &device, const Value &rule);
    void read_field(const Value &value, std::string_view pattern, policy::GpuPolicy &gpu);
    void unknown_key(const Value &member, std::string_view pattern);

    // Takes what `parse` makes of the string, or reports why not.
    template <class Parse, class Member>
    void read_text(const Value &value, const char *right, Parse parse, Member &member);

    using Nothing = decltype(std::ignore);
    void read_ignored(const Value &value, const Nothing &member);
    void read_version(const Value &value, const Nothing &member);
    void read_size(const Value &value, std::optional<policy::Size> &member);
    void read_report(const Value &value, std::optional<policy::Report> &member);
    void read_signal(const Value &value, int &member);
    void read_steps(const Value &value, std::vector<policy::Step> &member);
    void read_level(const Value &value, policy::LogLevel &member);
    void read_path(const Value &value, std::string &member);

    Lines lines_;
    std::string file_;
    policy::Policy &policy_;
    std::map<std::string, const Node *> devices_;  // that have a rule, in the one spelling of keys
    Diagnostics diagnostics_;
};

// ---- the fields ----

template <class Parse, class Member>
void Reader::read_text(const Value &value, const char *right, Parse parse, Member &member) {
    if (value.node.kind != Kind::string) return wrong_kind(value, right);
    if (auto parsed = parse(value.node.text)) {
        member = *parsed;
    } else {
        fault(value.node.at, value.pointer, parsed.error());
    }
}

void Reader::read_ignored(const Value &value, const Nothing & /*member*/) {
    if (value.node.kind != Kind::string) wrong_kind(value, "this is a string");
}

void Reader::read_version(const Value &value, const Nothing & /*member*/) {
    const Node &node = value.node;
    if (node.kind == Kind::number && node.text == "1") return;
    if (node.kind == Kind::number && node.text.find_first_of(".eE") == std::string::npos) {
        return fault(node.at, value.pointer, "version " + node.text + " is not known; this curb reads version 1");
    }
    wrong_kind(value, "the version is written 1");
}

void Reader::read_size(const Value &value, std::optional<policy::Size> &member) {
    if (value.node.kind == Kind::number && value.node.text.front() == '-') {
        return fault(value.node.at, value.pointer, value.node.text + ": sizes are not negative");
    }
    read_text(value, R"(a size is a string with a unit, as in "8GiB" or "75%")", policy::parse_size, member);
}

void Reader::read_report(const Value &value, std::optional<policy::Report> &member) {
    read_text(value, R"(what is reported is "cap" or "device")", policy::parse_report, member);
}

void Reader::read_signal(const Value &value, int &member) {
    read_text(value, R"(a signal is a name, as in "SIGUSR1" or "none")", policy::parse_signal, member);
}

void Reader::read_steps(const Value &value, std::vector<policy::Step> &member) {
    if (value.node.kind != Kind::array) {
        return wrong_kind(value, R"(the steps are an array of names, as in ["pools"])");
    }
    member.clear();
    for (std::size_t i = 0; i < value.node.children.size(); ++i) {
        const Node &item = value.node.children[i];
        const std::string pointer = value.pointer + "/" + std::to_string(i);
        policy::Step step{};
        const std::size_t before = diagnostics_.size();
        read_text({item, pointer}, "a step is a name", policy::parse_step, step);
        if (diagnostics_.size() > before) continue;
        if (std::find(member.begin(), member.end(), step) != member.end()) {
            fault(item.at, pointer, "the step " + quote(item.text, '"') + " stands here twice");
        }
        member.push_back(step);
    }
}

void Reader::read_level(const Value &value, policy::LogLevel &member) {
    read_text(value, R"(a log level is a name, as in "warning")", policy::parse_log_level, member);
}

void Reader::read_path(const Value &value, std::string &member) {
    if (value.node.kind != Kind::string) return wrong_kind(value, "a path is a string");
    if (value.node.text.find('\0') != std::string::npos) {
        return fault(value.node.at, value.pointer, "a path holds no NUL");
    }
    member = value.node.text;
}

// One row of the table, one call: its reader with its member.
void Reader::read_field(const Value &value, std::string_view pattern, [[maybe_unused]] policy::GpuPolicy &gpu) {
    auto &policy = policy_;
#define CURB_FIELD(pointer, type, member, fallback, doc) \
    if (pattern == (pointer)) return read_##type(value, member);
#include "policy/fields.def"
#undef CURB_FIELD
}

// ---- the keys ----

bool is_field(std::string_view pattern) {
    return std::any_of(policy::kFields.begin(), policy::kFields.end(),
                       [&](const policy::Field &field) { return field.pointer == pattern; });
}

// The members of the object that `pattern` names: of "" they are "version", "gpu" and so on; of "/gpu" there is "*".
std::vector<std::string_view> members_of(std::string_view pattern) {
    std::vector<std::string_view> names;
    for (const policy::Field &field : policy::kFields) {
        if (!field.pointer.starts_with(pattern)) continue;
        std::string_view rest = field.pointer.substr(pattern.size());
        if (!rest.starts_with('/')) continue;
        rest.remove_prefix(1);
        const std::string_view name = rest.substr(0, rest.find('/'));
        if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
    return names;
}

// Where a key that stands in the wrong object belongs: "/gpu/*/cap" for "cap". Empty: nowhere.
std::string_view belongs(std::string_view key) {
    for (const policy::Field &field : policy::kFields) {
        if (field.pointer.substr(field.pointer.rfind('/') + 1) == key) return field.pointer;
    }
    return {};
}

void Reader::read(const Node &root) {
    const std::string top;
    policy::GpuPolicy none;
    if (root.kind != Kind::object) return wrong_kind({root, top}, R"(a policy is an object, as in { "version": 1 })");
    read_object({root, top}, top, none);
    const bool versioned = std::any_of(root.children.begin(), root.children.end(),
                                       [](const Node &child) { return child.key == "version"; });
    if (!versioned) fault(root.at, top, R"(the version is missing; add "version": 1)");
}

void Reader::read_object(const Value &object, const std::string &pattern, policy::GpuPolicy &gpu) {
    std::map<std::string_view, std::size_t> seen;  // key -> where it stands
    for (const Node &child : object.node.children) {
        const std::string pointer = object.pointer + "/" + pointer_token(child.key);
        if (const auto [first, fresh] = seen.emplace(child.key, child.key_at); !fresh) {
            fault(child.key_at, pointer,
                  "the key " + quote(child.key, '"') + " stands twice; first at " + lines_.place(first->second).text());
        }
        read_member({child, pointer}, pattern, gpu);
    }
}

void Reader::read_member(const Value &member, const std::string &pattern, policy::GpuPolicy &gpu) {
    if (is_field(pattern + "/*") || members_of(pattern + "/*").size() > 0) return read_gpu(member, pattern + "/*");
    const std::string inner = pattern + "/" + pointer_token(member.node.key);
    if (is_field(inner)) return read_field(member, inner, gpu);
    if (members_of(inner).empty()) return unknown_key(member, pattern);
    if (member.node.kind != Kind::object) return wrong_kind(member, quote(member.node.key, '"') + " is an object");
    read_object(member, inner, gpu);
}

void Reader::read_gpu(const Value &rule, const std::string &pattern) {
    const std::string &key = rule.node.key;
    policy::GpuPolicy gpu;
    const auto device = policy::parse_gpu_key(key);
    if (!device) {
        const std::string_view there = belongs(key);
        fault(rule.node.key_at, rule.pointer,
              there.empty() ? device.error()
                            : quote(key, '"') + " is not a device; did you mean " + std::string(there) + "?");
        if (!there.empty()) return;
    }
    if (device) one_rule_each(*device, rule);
    if (rule.node.kind != Kind::object) {
        return wrong_kind(rule, R"(what a device gets is an object, as in { "cap": "8GiB" })");
    }
    read_object(rule, pattern, gpu);
    if (device) policy_.gpu.push_back({*device, gpu});
}

// One device in two spellings; of the same spelling twice read_object tells.
void Reader::one_rule_each(const policy::GpuKey &device, const Value &rule) {
    const auto [place, fresh] = devices_.emplace(policy::gpu_key_text(device), &rule.node);
    const Node &first = *place->second;
    if (fresh || first.key == rule.node.key) return;
    fault(rule.node.key_at, rule.pointer,
          quote(rule.node.key, '"') + " is the device that " + quote(first.key, '"') + " names at " +
              lines_.place(first.key_at).text() + "; put what both say in one");
}

void Reader::unknown_key(const Value &member, std::string_view pattern) {
    const std::string &key = member.node.key;
    const std::vector<std::string_view> known = members_of(pattern);
    std::string message = "unknown key " + quote(key, '"');
    if (const std::string_view near = policy::nearest(key, known); !near.empty()) {
        message += "; did you mean " + quote(near, '"') + "?";
    } else if (const std::string_view there = belongs(key); !there.empty()) {
        message.append("; did you mean ").append(there).append("?");
    } else {
        std::string_view separator = "; known here: ";
        for (const std::string_view name : known) {
            message.append(separator).append(quote(name, '"'));
            separator = ", ";
        }
    }
    fault(member.node.key_at, member.pointer, std::move(message));
}

// ---- what was wrong ----

void Reader::fault(std::size_t at, const std::string &pointer, std::string message) {
    const auto [line, column] = lines_.place(at);
    diagnostics_.push_back({file_, line, column, pointer, std::move(message)});
}

void Reader::wrong_kind(const Value &value, const std::string &right) {
    fault(value.node.at, value.pointer, right + ", not " + shown(value.node));
}

Diagnostics Reader::diagnostics() && {
    std::stable_sort(diagnostics_.begin(), diagnostics_.end(), [](const Diagnostic &a, const Diagnostic &b) {
        return std::pair(a.line, a.column) < std::pair(b.line, b.column);
    });
    return std::move(diagnostics_);
}

}  // namespace

policy::Result<policy::Policy, Diagnostics> parse(std::string_view json, std::string_view file) {
    try {
        policy::Policy policy;
        Reader reader(json, file, policy);
        if (const auto document = read_document(json)) {
            reader.read(*document);
        } else {
            const Fault &fault = document.error();
            reader.fault(fault.at, fault.pointer, fault.message);
        }
        Diagnostics diagnostics = std::move(reader).diagnostics();
        if (diagnostics.empty()) return policy;
        return diagnostics;
    } catch (...) {
        return out_of_memory(file);
    }
}

}  // namespace curb::config
