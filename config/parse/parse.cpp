// Reads a policy file's tree into policy::File, by the table of fields (policy/fields.def): a key that the table does
// not have is unknown (keys.hpp), and each field is read by the function of its type (values.hpp).
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "config/load.hpp"
#include "diagnostic.hpp"
#include "document.hpp"
#include "faults.hpp"
#include "keys.hpp"
#include "policy/values/words.hpp"
#include "values.hpp"

namespace curb::config {
namespace {

using policy::quote;
using Kind = Node::Kind;

// The destination of a value.
struct Into {
    policy::Layer *layer;
    policy::Rule *rule;      // null: the file itself
    policy::GpuPolicy *gpu;  // null: not within a device
};

class Reader {
  public:
    Reader(Faults &faults, policy::File &file) : faults_(faults), file_(file) {}

    void read(const Node &root);
    // Adds faults for fields that contradict each other. Only for a file whose devices are valid otherwise.
    void check_conflicts();

    [[nodiscard]] std::map<std::string, Place> places() const;

  private:
    void read_object(const Value &object, const std::string &pattern, const Into &into);
    void read_member(const Value &member, const std::string &pattern, const Into &into);
    void read_field(const Value &value, std::string_view pattern, const Into &into);
    void read_devices(const Value &object, const std::string &pattern, const Into &into);
    void read_rules(const Value &array);
    void step_or_factor(const Value &growth);

    struct Spot {
        std::size_t at;
        std::string pointer;  // as the text spells it
    };
    // Returns the conflicts of the file when the rule overrides it. May leave out those that the file has by itself.
    [[nodiscard]] std::vector<policy::Conflict> conflicts_with(const policy::Rule &rule) const;
    [[nodiscard]] const Spot *spot_of(const policy::Conflict &conflict, const policy::Rule *rule) const;
    void report(const policy::Conflict &conflict, const policy::Rule *rule);

    Faults &faults_;
    policy::File &file_;
    std::map<std::string, Spot> fields_;   // by Value::place: the places of values
    std::map<std::string, Spot> devices_;  // by Value::place: the places of device keys
    // For check_conflicts(): the index of each device of the file, and the first that has growth.start.
    std::map<std::string, std::size_t> base_;
    std::optional<std::size_t> starts_;
};

void Reader::read(const Node &root) {
    const Value file{root, {}, {}};
    if (root.kind != Kind::object) return faults_.wrong_kind(file, R"(a policy is an object, as in { "version": 1 })");
    read_object(file, {}, {&file_.base, nullptr, nullptr});
    const bool versioned = std::any_of(root.children.begin(), root.children.end(),
                                       [](const Node &child) { return child.key == "version"; });
    if (!versioned) faults_.add(root.at, {}, R"(the version is missing; add "version": 1)");
}

void Reader::read_object(const Value &object, const std::string &pattern, const Into &into) {
    each_member(object, faults_, [&](const Value &member) { read_member(member, pattern, into); });
}

void Reader::read_member(const Value &member, const std::string &pattern, const Into &into) {
    const std::string &key = member.node.key;
    const std::string inner = pattern + "/" + policy::pointer_token(key);
    if (is_field(inner)) return read_field(member, inner, into);
    const std::vector<std::string_view> within = known_members(inner);
    if (within.empty()) return faults_.add(member.node.key_at, member.pointer, unknown_key(key, pattern));
    if (inner + "/*" == kRule) return read_rules(member);
    if (member.node.kind != Kind::object) return faults_.wrong_kind(member, quote(key, '"') + " is an object");
    if (within.front() == "*") return read_devices(member, inner + "/*", into);
    read_object(member, inner, into);
    if (key == "growth") step_or_factor(member);
}

// Each row of the table is one call of its type's reader.
void Reader::read_field(const Value &value, std::string_view pattern, const Into &into) {
    fields_.emplace(value.place, Spot{value.node.at, value.pointer});
    const std::string_view bare = into.rule ? pattern.substr(kRule.size()) : pattern;
#define CURB_FILE_FIELD(pointer, type, doc) \
    if (pattern == (pointer)) return read_##type(faults_, value);
#define CURB_RULE_FIELD(pointer, type, member, doc) \
    if (pattern == (pointer)) return read_##type(faults_, value, "", into.rule->member);
#define CURB_GPU_FIELD(pointer, type, member, least, fallback, holds, doc) \
    if (bare == (pointer)) return read_##type(faults_, value, least, into.gpu->member);
#define CURB_JOB_FIELD(pointer, type, member, least, fallback, holds, doc) \
    if (bare == (pointer)) return read_##type(faults_, value, least, into.layer->member);
#include "policy/fields.def"
}

void Reader::read_devices(const Value &object, const std::string &pattern, const Into &into) {
    std::map<std::string, const Node *> seen;  // in the one spelling of keys
    each_member(object, faults_, [&](Value &device) {
        const Node &node = device.node;
        const auto key = policy::parse_gpu_key(node.key);
        if (!key) {
            const std::string there = belongs(node.key, pattern);
            faults_.add(
                node.key_at, device.pointer,
                there.empty() ? key.error() : quote(node.key, '"') + " is not a device; did you mean " + there + "?");
            if (!there.empty()) return;
        } else {
            // each_member() reports a key that is spelt the same twice.
            const auto [place, fresh] = seen.emplace(policy::gpu_key_text(*key), &node);
            if (const Node &first = *place->second; !fresh && first.key != node.key)
                faults_.add(node.key_at, device.pointer,
                            quote(node.key, '"') + " is the device that " + quote(first.key, '"') + " names at " +
                                faults_.place_text(first.key_at) + "; put what both say in one");
            device.place = object.place + "/" + policy::pointer_token(place->first);
            devices_.emplace(device.place, Spot{node.key_at, device.pointer});
        }
        if (node.kind != Kind::object) {
            faults_.wrong_kind(device, R"(what a device gets is an object, as in { "cap": "8GiB" })");
            return;
        }
        policy::GpuPolicy gpu;
        read_object(device, pattern, {into.layer, into.rule, &gpu});
        if (key) into.layer->gpu.push_back({*key, gpu});
    });
}

// Adds a fault if a growth has both a step and a factor.
void Reader::step_or_factor(const Value &growth) {
    const Node *first = nullptr;
    for (const Node &child : growth.node.children) {
        if (child.key != "step" && child.key != "factor") continue;
        if (first && first->key != child.key)
            return faults_.add(child.key_at, growth.pointer + "/" + child.key,
                               quote(first->key, '"') + " at " + faults_.place_text(first->key_at) +
                                   " says already how the allowance grows; take out one of the two");
        first = &child;
    }
}

void Reader::read_rules(const Value &array) {
    if (array.node.kind != Kind::array)
        return faults_.wrong_kind(array, R"(the rules are an array, as in [{ "match": { "exe": "python3*" } }])");
    for (std::size_t i = 0; i < array.node.children.size() && !faults_.full(); ++i) {
        const std::string token = "/" + std::to_string(i);
        const Value item{array.node.children[i], array.pointer + token, array.place + token};
        policy::Rule rule;
        if (item.node.kind != Kind::object) {
            faults_.wrong_kind(item, R"(a rule is an object, as in { "match": { "exe": "python3*" } })");
            continue;
        }
        read_object(item, std::string(kRule), {&rule.over, &rule, nullptr});
        const auto &keys = item.node.children;
        if (std::none_of(keys.begin(), keys.end(), [](const Node &child) { return child.key == "match"; }))
            faults_.add(item.node.at, item.pointer,
                        R"(the rule does not say which processes it is for; add "match", {} for all of them)");
        file_.rules.push_back(std::move(rule));
    }
}

// ---- fields that contradict each other ----

// True if conflicts of devices' fields can be checked in spite of a fault at this pointer. They are between fields of
// `growth`. A field that could not be read seems to be missing: a growth with one wrong field would be blamed for
// lacking it.
bool leaves_conflicts(std::string_view pointer) {
    if (!pointer.starts_with("/gpu") && !pointer.starts_with("/rules")) return true;
    const std::vector<std::string_view> members = known_members("/gpu/*");
    return std::any_of(members.begin(), members.end(), [&](std::string_view member) {
        const std::string inner = "/" + std::string(member);
        return member != "growth" && (pointer.ends_with(inner) || pointer.find(inner + "/") != std::string_view::npos);
    });
}

bool is_every(const policy::GpuRule &one) { return one.key.kind == policy::GpuKey::Kind::every; }

bool same(const policy::Conflict &a, const policy::Conflict &b) {
    return a.key == b.key && a.field == b.field && a.message == b.message;
}

std::vector<policy::Conflict> Reader::conflicts_with(const policy::Rule &rule) const {
    const std::vector<policy::GpuRule> &base = file_.base.gpu;
    policy::Layer layer, over;
    over.gpu = rule.over.gpu;
    if (std::any_of(over.gpu.begin(), over.gpu.end(), is_every)) {
        layer.gpu = base;
    } else {
        // The conflicts of devices that the rule does not name are reported already. Checking them again for each
        // rule would be slow with thousands of both. One device with growth.start stands for all of them.
        std::set<std::size_t> taken;
        const auto take = [&](const std::string &key) {
            if (const auto found = base_.find(key); found != base_.end()) taken.insert(found->second);
        };
        for (const policy::GpuRule &one : over.gpu) take(policy::gpu_key_text(one.key));
        take("*");
        if (starts_) taken.insert(*starts_);
        for (const std::size_t i : taken) layer.gpu.push_back(base[i]);
    }
    policy::lay_over(layer, over);
    return policy::conflicts(layer.gpu);
}

// Returns the place of the field, or else of the device's key: in the rule, or else in the file itself.
const Reader::Spot *Reader::spot_of(const policy::Conflict &conflict, const policy::Rule *rule) const {
    const std::string device = "/gpu/" + policy::pointer_token(policy::gpu_key_text(conflict.key));
    const std::string field = device + "/" + conflict.field;
    const std::string over = rule ? "/rules/" + std::to_string(rule - file_.rules.data()) : std::string();
    for (const auto &[spots, place] : {std::pair(&fields_, over + field), std::pair(&fields_, field),
                                       std::pair(&devices_, over + device), std::pair(&devices_, device)}) {
        if (const auto found = spots->find(place); found != spots->end()) return &found->second;
    }
    return nullptr;
}

void Reader::check_conflicts() {
    const std::vector<policy::GpuRule> &base = file_.base.gpu;
    const auto of_file = policy::conflicts(base);
    for (std::size_t i = 0; i < base.size(); ++i) {
        base_.emplace(policy::gpu_key_text(base[i].key), i);
        if (base[i].policy.growth.start && !starts_) starts_ = i;
    }
    for (const policy::Conflict &conflict : of_file) {
        if (faults_.full()) return;
        report(conflict, nullptr);
    }
    constexpr std::size_t kMostPairs = 1'000'000;  // of a device and a rule for "*": takes a second or two
    std::size_t pairs = 0;
    for (const policy::Rule &rule : file_.rules) {
        if (rule.over.gpu.empty()) continue;
        if (std::any_of(rule.over.gpu.begin(), rule.over.gpu.end(), is_every)) pairs += base.size();
        if (pairs > kMostPairs)
            return faults_.add(0, {},
                               std::to_string(base.size()) + " devices and " + std::to_string(file_.rules.size()) +
                                   " rules are too many to check together; divide the file");
        if (faults_.full()) return;
        for (const policy::Conflict &conflict : conflicts_with(rule)) {
            if (std::none_of(of_file.begin(), of_file.end(), [&](const auto &old) { return same(old, conflict); }))
                report(conflict, &rule);
        }
    }
}

void Reader::report(const policy::Conflict &conflict, const policy::Rule *rule) {
    const Spot *spot = spot_of(conflict, rule);
    const std::string with = rule ? "with " + policy::rule_name(file_, *rule) + " laid over: " : std::string();
    if (spot) faults_.add(spot->at, spot->pointer, with + conflict.message);
}

std::map<std::string, Place> Reader::places() const {
    std::map<std::string, Place> out;
    for (const auto &[name, spot] : fields_) out.emplace(name, faults_.place(spot.at));
    return out;
}

}  // namespace

policy::Result<Document, Diagnostics> parse(std::string_view json, std::string_view file) {
    try {
        Document out;
        Faults faults(json, file);
        Reader reader(faults, out.file);
        if (const auto document = read_document(json)) {
            reader.read(*document);
            if (!faults.full() && faults.all_of(leaves_conflicts)) reader.check_conflicts();
        } else {
            const Fault &fault = document.error();
            faults.add(fault.at, fault.pointer, fault.message);
        }
        if (!faults.none()) return faults.faults();
        out.places = reader.places();
        return out;
    } catch (...) {
        return out_of_memory(file);
    }
}

}  // namespace curb::config
