#include "policies/policy_rows.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "policy/values/words.hpp"
#include "terminal/json.hpp"
#include "terminal/text_width.hpp"

namespace curb::cli {
namespace {

using policy::Field;
using policy::GpuKey;

// Returns a device of which only the key is known, for policy::names.
policy::GpuIdentity identity(const GpuKey &key) {
    policy::GpuIdentity out;
    out.ordinal = key.kind == GpuKey::Kind::cuda ? key.index : -1;
    if (key.kind == GpuKey::Kind::nvml) out.nvml_index = key.index;
    if (key.kind == GpuKey::Kind::pci) out.pci = key.text;
    if (key.kind == GpuKey::Kind::gpu_uuid) out.gpu_uuid = key.text;
    if (key.kind == GpuKey::Kind::mig_uuid) out.mig_uuid = key.text;
    return out;
}

// Returns the pointer of the rule: "/rules/2".
std::string in_rule(const config::Document &document, const policy::Rule &rule) {
    return "/rules/" + std::to_string(&rule - document.file.rules.data());
}

// The settings of one file, with the rule that applies.
class Side {
  public:
    Side(const config::Document &document, const policy::Rule *rule, Origin::Kind kind)
        : document_(document), rule_(rule), kind_(kind), layer_(policy::with_rule(document.file, rule)) {}

    [[nodiscard]] const std::vector<policy::GpuRule> &gpu() const { return layer_.gpu; }
    [[nodiscard]] bool environment() const { return layer_.environment.value_or(true); }

    struct Said {
        std::string value;  // JSON
        std::vector<Origin> origins;
    };
    // Returns the setting for the device that `key` names. nullopt if there is none.
    [[nodiscard]] std::optional<Said> of_device(const Field &field, const GpuKey &key) const {
        policy::Layer device;
        device.gpu = {{key, policy::gpu_policy_for(layer_.gpu, identity(key))}};
        const auto value = value_of(device, field);
        if (!value) return std::nullopt;
        std::vector<Origin> origins;  // that of the most specific key, which comes last
        for (const policy::GpuRule *rule : policy::rules_naming(layer_.gpu, identity(key)))
            if (auto here = origins_of(with_key(field, policy::gpu_key_text(rule->key))); !here.empty())
                origins = {std::move(here.front())};
        return Said{*value, std::move(origins)};
    }
    [[nodiscard]] std::optional<Said> of_process(const Field &field) const {
        const auto value = value_of(layer_, field);
        if (!value) return std::nullopt;
        std::vector<Origin> origins = origins_of(std::string(field.pointer));
        if (field.type != policy::FieldType::environment) origins.resize(std::min<std::size_t>(origins.size(), 1));
        return Said{*value, std::move(origins)};
    }

    static std::string with_key(const Field &field, const std::string &key) {
        std::string out(field.pointer);
        return out.replace(out.find('*'), 1, policy::pointer_token(key));
    }

  private:
    static std::optional<std::string> value_of(const policy::Layer &layer, const Field &field) {
        for (policy::Setting &setting : policy::settings(layer))
            if (setting.field->pointer == field.pointer) return std::move(setting.value);
        return std::nullopt;
    }

    // Returns where the pointer is set: in the rule, then in the rest of the file.
    [[nodiscard]] std::vector<Origin> origins_of(const std::string &pointer) const {
        std::vector<Origin> out;
        const auto add = [&](const std::string &at, const std::string &rule) {
            if (const auto place = document_.places.find(at); place != document_.places.end())
                out.push_back({kind_, place->second, rule, {}});
        };
        if (rule_ != nullptr) add(in_rule(document_, *rule_) + pointer, policy::rule_name(document_.file, *rule_));
        add(pointer, {});
        return out;
    }

    const config::Document &document_;
    const policy::Rule *rule_;
    Origin::Kind kind_;
    policy::Layer layer_;
};

const char *held_to(policy::Holds holds) {
    switch (holds) {
        case policy::Holds::lower: return "at most";
        case policy::Holds::higher: return "at least";
        case policy::Holds::own: break;
    }
    return "overridden";
}

// Returns the row of a field from its value in the user's policy, with the bounds of variables, and in the ceiling.
Row row(std::string pointer, const Field &field, std::optional<Side::Said> own, std::vector<Bound> bounds,
        std::optional<Side::Said> ceiling) {
    if (!own && !ceiling) return {std::move(pointer), &field, field.fallback(), {Origin{}}, {}};
    Row out{std::move(pointer), &field, {}, {}, std::move(bounds)};
    if (own && ceiling) out.bounds.push_back({held_to(field.holds), ceiling->value, ceiling->origins.front()});
    Side::Said &said = own ? *own : *ceiling;
    out.value = std::move(said.value);
    out.origins = std::move(said.origins);
    return out;
}

// Removes the quotes of a string of one word, and the quotes and brackets of a list. Returns other values as JSON.
std::string as_typed(const std::string &value) {
    if (value.empty()) return "-";
    const bool is_word = value.size() > 2 && value.front() == '"' && value.find_first_of(" \\,") == std::string::npos;
    if (is_word) return value.substr(1, value.size() - 2);
    if (value.front() != '[' || value == "[]") return value;
    std::string words = value.substr(1, value.size() - 2);
    std::erase(words, '"');
    return words;
}

// The heading of a block of rows, `gpu "cuda:0"` or "release", and the length of their pointers' common beginning.
struct Heading {
    std::string text;
    std::size_t length;
};
Heading heading(const Row &row) {
    const std::string_view pattern = row.field->pointer;
    const std::string section(pattern.substr(1, pattern.find('/', 1) - 1));
    if (pattern.find('/', 1) == std::string_view::npos) return {"", 1};  // "/environment"
    if (!pattern.starts_with("/gpu/*/")) return {section, section.size() + 2};
    const std::size_t rest = pattern.size() - std::string_view("/gpu/*").size();
    const std::size_t length = row.pointer.size() - rest;
    return {section + " " + policy::quote(row.pointer.substr(5, length - 5), '"'), length + 1};
}

// Returns the members, then the place: {…,"file":"job.json","line":7,"column":14}.
std::string at(json::Members members, const config::Place &place) {
    members.emplace_back("file", json::text(place.file));
    members.emplace_back("line", place.line);
    members.emplace_back("column", place.column);
    return json::object(members);
}

// Settings of variables, by the pointer of their fields.
using BySetting = std::map<std::string_view, Side::Said>;
void add(BySetting &all, const policy::Layer &layer, const char *variable) {
    for (policy::Setting &setting : policy::settings(layer))
        all[setting.field->pointer] = {std::move(setting.value), {{Origin::Kind::variable, {}, {}, variable}}};
}

// Returns the settings of flags.
BySetting said_by_flags(const config::Source &source) {
    BySetting out;
    for (const auto &[flag, text] : source.flags) {
        policy::Flags said;
        if (policy::read_flag(flag, text, said)) continue;  // reading the policy has failed already
        policy::Layer layer = said.job;
        layer.gpu = {{GpuKey(), said.gpu}};
        add(out, layer, policy::flags()[static_cast<std::size_t>(flag)].variable);
    }
    return out;
}

// Returns the setting of CURB_SIGNAL.
BySetting said_by_signal(const config::Reading &reading) {
    policy::Layer layer;
    layer.release.signal = reading.signal;
    BySetting out;
    add(out, layer, "CURB_SIGNAL");
    return out;
}

// A setting of a rule and its place.
struct Saying {
    policy::Setting setting;
    config::Place place;
};
std::vector<Saying> sayings(const config::Document &document, const policy::Rule &rule) {
    std::vector<Saying> out;
    for (policy::Setting &setting : policy::settings(rule.over)) {
        const auto place = document.places.find(in_rule(document, rule) + setting.pointer);
        out.push_back({std::move(setting), place == document.places.end() ? config::Place() : place->second});
    }
    return out;
}

// Adds those caps of a variable that name the device: the first as the value if the file sets none, others as bounds.
void narrow(std::optional<Side::Said> &said, std::vector<Bound> &bounds, const std::vector<policy::CapFor> &caps,
            const GpuKey &key, const char *name) {
    for (const policy::CapFor &one : caps) {
        if (!policy::names(one.key, identity(key))) continue;
        Side::Said variable{policy::json_text(one.size), {{Origin::Kind::variable, {}, {}, name}}};
        if (said) bounds.push_back({"at most", variable.value, variable.origins.front()});
        if (!said) said = std::move(variable);
    }
}

// Returns the keys of the devices that a file or a variable names; if there are none, the key of every device.
std::vector<GpuKey> keys_of(const Side &own, const Side &ceiling, const config::Reading &reading) {
    const policy::Narrowing &narrowed = reading.narrowed_to;
    std::vector<GpuKey> out;
    const auto add = [&](const GpuKey &key) {
        if (std::find(out.begin(), out.end(), key) == out.end()) out.push_back(key);
    };
    for (const Side *side : {&own, &ceiling})
        for (const policy::GpuRule &rule : side->gpu()) add(rule.key);
    for (const policy::CapFor &one : narrowed.cap) add(one.key);
    for (const policy::CapFor &one : narrowed.job)
        if (one.key.kind != GpuKey::Kind::every) add(one.key);
    for (const policy::HandedInCap &one : narrowed.handed_in.caps) add(one.cap.key);
    if (out.empty() || narrowed.handed_in.request || reading.flags.gpu != policy::GpuPolicy()) add(GpuKey());
    return out;
}

// Makes the rows of one reading.
class Rows {
  public:
    Rows(const config::Reading &reading, const config::Outcome &outcome, const config::Source &source)
        : reading_(reading),
          flags_(said_by_flags(source)),
          signal_(said_by_signal(reading)),
          own_(reading.own, outcome.rule, Origin::Kind::file),
          ceiling_(reading.ceiling ? *reading.ceiling : none_, outcome.ceiling_rule, Origin::Kind::ceiling),
          narrowed_(reading.narrowed_to),
          takes_handed_in_(own_.environment() && ceiling_.environment()) {
        for (const policy::CapFor &one : narrowed_.job)
            (one.key.kind == GpuKey::Kind::every ? job_of_every_ : job_of_one_).push_back(one);
    }

    [[nodiscard]] std::vector<Row> all() const {
        std::vector<Row> out;
        for (const GpuKey &key : keys_of(own_, ceiling_, reading_))
            for (const Field &field : policy::fields())
                if (field.pointer.starts_with("/gpu/")) out.push_back(of_device(field, key));
        for (const Field &field : policy::fields()) {
            const bool of_file = field.type == policy::FieldType::ignored || field.type == policy::FieldType::version;
            if (!of_file && !field.pointer.starts_with("/gpu/") && !field.pointer.starts_with("/rules/"))
                out.push_back(of_process(field));
        }
        return out;
    }

  private:
    [[nodiscard]] Row of_device(const Field &field, const GpuKey &key) const {
        auto said = over(field, own_.of_device(field, key));
        std::vector<Bound> bounds;
        if (field.pointer == "/gpu/*/cap") {
            narrow(said, bounds, narrowed_.cap, key, "CURB_CAP");
            if (!said && takes_handed_in_)
                for (const policy::HandedInCap &one : narrowed_.handed_in.caps)
                    narrow(said, bounds, {one.cap}, key, one.variable.c_str());
        }
        if (!said) said = of_request(field, key);
        if (field.pointer == "/gpu/*/job_cap") narrow(said, bounds, job_of_one_, key, "CURB_JOB_CAP");
        return row(Side::with_key(field, policy::gpu_key_text(key)), field, std::move(said), std::move(bounds),
                   ceiling_.of_device(field, key));
    }

    // Returns the growth that another system's request for memory sets, where nothing caps the device in another way
    // (see terms_for()). nullopt if it sets none.
    [[nodiscard]] std::optional<Side::Said> of_request(const Field &field, const GpuKey &key) const {
        const auto names_it = [&](const policy::CapFor &cap) { return policy::names(cap.key, identity(key)); };
        const auto &request = narrowed_.handed_in.request;
        policy::Layer layer;
        layer.gpu = {{key, policy::gpu_policy_for(own_.gpu(), identity(key))}};
        policy::lay_over(layer, reading_.flags);
        const policy::GpuPolicy own = policy::gpu_policy_for(layer.gpu, identity(key));
        if (!request || !takes_handed_in_ || own.cap || own.growth.start ||
            std::any_of(narrowed_.cap.begin(), narrowed_.cap.end(), names_it))
            return std::nullopt;
        for (const policy::HandedInCap &one : narrowed_.handed_in.caps)
            if (names_it(one.cap) && one.cap.size.amount <= request->amount) return std::nullopt;
        policy::Layer set;
        set.gpu = {{key, {}}};
        policy::GrowthPolicy &growth = set.gpu[0].policy.growth;
        growth.start = request;
        if (!own.growth.step && !own.growth.factor) growth.step = policy::Size{policy::Size::Unit::bytes, policy::GiB};
        BySetting by;
        add(by, set, "NVIDIA_GPU_MEMORY_REQUEST");
        const auto found = by.find(field.pointer);
        return found == by.end() ? std::nullopt : std::optional(found->second);
    }

    [[nodiscard]] Row of_process(const Field &field) const {
        auto said = over(field, own_.of_process(field));
        const auto ceiling = ceiling_.of_process(field);
        if (const auto found = signal_.find(field.pointer); found != signal_.end() && !said && !ceiling)
            said = found->second;  // where no file names one
        std::vector<Bound> bounds;
        if (field.pointer == "/job/cap") narrow(said, bounds, job_of_every_, {}, "CURB_JOB_CAP");
        return row(std::string(field.pointer), field, std::move(said), std::move(bounds), ceiling);
    }

    // Returns what a flag says about the field, else what the file says.
    [[nodiscard]] std::optional<Side::Said> over(const Field &field, std::optional<Side::Said> file) const {
        if (const auto flag = flags_.find(field.pointer); flag != flags_.end()) return flag->second;
        // A flag's step replaces the file's factor.
        if (field.pointer == "/gpu/*/growth/factor" && flags_.contains("/gpu/*/growth/step")) file.reset();
        return file;
    }

    const config::Reading &reading_;
    const BySetting flags_, signal_;
    const config::Document none_;
    const Side own_, ceiling_;
    const policy::Narrowing &narrowed_;
    const bool takes_handed_in_;
    // A cap of the job on every device is in the row of job.cap.
    std::vector<policy::CapFor> job_of_every_, job_of_one_;
};

}  // namespace

std::vector<Row> rows(const config::Reading &reading, const config::Outcome &outcome, const config::Source &source) {
    return Rows(reading, outcome, source).all();
}

bool is_default(const Row &row) { return row.origins.front().kind == Origin::Kind::fallback && row.bounds.empty(); }

std::string Origin::text() const {
    if (kind == Kind::fallback) return "default";
    if (kind == Kind::variable) return variable;
    std::string more = kind == Kind::ceiling ? "ceiling" : "";
    if (!rule.empty()) more += (more.empty() ? "" : ", ") + rule;
    return place.text() + (more.empty() ? "" : " (" + more + ")");
}

std::string Origin::json_text() const {
    if (kind == Kind::fallback) return json::object({{"kind", json::text("default")}});
    if (kind == Kind::variable) return json::object({{"kind", json::text(variable)}});
    return at({{"kind", json::text(kind == Kind::file ? "file" : "ceiling")}, {"rule", json::text_or_null(rule)}},
              place);
}

std::string Bound::text() const {
    // Without "(ceiling)": only the ceiling bounds values by a file.
    Origin by = origin;
    if (by.kind == Origin::Kind::ceiling) by.kind = Origin::Kind::file;
    return std::string(holds) + (std::string_view(holds) == "overridden" ? ": " : " ") + as_typed(value) + " by " +
           by.text();
}

std::string text(const std::vector<Row> &rows) {
    std::vector<std::vector<std::string>> lines;
    std::string last;
    for (const Row &row : rows) {
        const auto [block, length] = heading(row);
        if (block != last && !block.empty()) lines.push_back({block});
        last = block;
        lines.push_back({(block.empty() ? "" : "  ") + row.pointer.substr(length), as_typed(row.value),
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
    std::vector<std::string> out;
    const auto add = [&](const std::string &what, const std::optional<std::string> &pattern) {
        if (pattern) out.push_back(what + " " + policy::quote(*pattern, '"'));
    };
    add("exe", match.exe);
    add("args", match.args);
    add("user", match.user);
    for (const auto &[name, pattern] : match.env.value_or(policy::Environment{})) add("env " + name, pattern);
    return out.empty() ? "every process" : policy::joined(out, ", ");
}

std::string json_text(const policy::Match &match) {
    json::Members out;
    const auto add = [&](const char *name, const std::optional<std::string> &pattern) {
        if (pattern) out.emplace_back(name, json::text(*pattern));
    };
    add("exe", match.exe);
    add("args", match.args);
    add("user", match.user);
    if (match.env) out.emplace_back("env", policy::json_text(*match.env));
    return json::object(out);
}

}  // namespace curb::cli
