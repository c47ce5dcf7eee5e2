#include "policy_rows.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "policy/words.hpp"

namespace curb::cli {
namespace {

using policy::Field;
using policy::GpuKey;

// A device of which no more is known than a key says, for policy::names.
policy::GpuIdentity identity(const GpuKey &key) {
    policy::GpuIdentity out;
    out.ordinal = key.kind == GpuKey::Kind::cuda ? key.index : -1;
    if (key.kind == GpuKey::Kind::nvml) out.nvml_index = key.index;
    if (key.kind == GpuKey::Kind::pci) out.pci = key.text;
    if (key.kind == GpuKey::Kind::gpu_uuid) out.gpu_uuid = key.text;
    if (key.kind == GpuKey::Kind::mig_uuid) out.mig_uuid = key.text;
    return out;
}

// What one file says, with the rule that is laid over it.
class Side {
  public:
    Side(const config::Document &document, const policy::Rule *rule, Origin::Kind kind)
        : document_(document), rule_(rule), kind_(kind), layer_(policy::with_rule(document.file, rule)) {}

    [[nodiscard]] const std::vector<policy::GpuRule> &gpu() const { return layer_.gpu; }

    struct Said {
        std::string value;  // JSON
        std::vector<Origin> origins;
    };
    // Of the device that `key` names, all that holds for it. None: nothing is said.
    [[nodiscard]] std::optional<Said> of_device(const Field &field, const GpuKey &key) const {
        policy::Layer device;
        device.gpu = {{key, policy::gpu_policy_for(layer_.gpu, identity(key))}};
        const auto value = value_of(device, field);
        if (!value) return std::nullopt;
        std::vector<Origin> origins;  // that of the most specific key
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

    // Where this pointer stands: in the rule, then in the rest of the file.
    [[nodiscard]] std::vector<Origin> origins_of(const std::string &pointer) const {
        std::vector<Origin> out;
        const policy::File &file = document_.file;
        if (rule_ != nullptr) {
            const std::string in_rule = "/rules/" + std::to_string(rule_ - file.rules.data()) + pointer;
            const auto place = document_.places.find(in_rule);
            if (place != document_.places.end()) out.push_back({kind_, place->second, policy::rule_name(file, *rule_)});
        }
        const auto place = document_.places.find(pointer);
        if (place != document_.places.end()) out.push_back({kind_, place->second, {}});
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

// The user's word, the ceiling's, and what comes of both.
Row row(std::string pointer, const Field &field, std::optional<Side::Said> own, std::optional<Side::Said> ceiling) {
    if (!own && !ceiling) return {std::move(pointer), &field, field.fallback(), {Origin{}}, {}};
    Row out{std::move(pointer), &field, {}, {}, {}};
    if (own && ceiling) out.bounds.push_back({held_to(field.holds), ceiling->value, ceiling->origins.front()});
    Side::Said &said = own ? *own : *ceiling;
    out.value = std::move(said.value);
    out.origins = std::move(said.origins);
    return out;
}

}  // namespace

std::vector<Row> rows(const config::Reading &reading, const config::Outcome &outcome, const std::string &cap) {
    const Side own(reading.own, outcome.rule, Origin::Kind::file);
    const config::Document none;
    const Side ceiling(reading.ceiling ? *reading.ceiling : none, outcome.ceiling_rule, Origin::Kind::ceiling);

    std::vector<GpuKey> keys;
    for (const Side *side : {&own, &ceiling})
        for (const policy::GpuRule &rule : side->gpu())
            if (std::find(keys.begin(), keys.end(), rule.key) == keys.end()) keys.push_back(rule.key);
    if (keys.empty()) keys.emplace_back();

    std::vector<Row> out;
    for (const GpuKey &key : keys) {
        for (const Field &field : policy::fields()) {
            if (!field.pointer.starts_with("/gpu/")) continue;
            auto said = own.of_device(field, key);
            std::vector<Bound> bounds;
            if (field.pointer == "/gpu/*/cap" && !cap.empty()) {
                for (const policy::Size &one : reading.narrowed_to) {
                    Side::Said variable{policy::json_text(one), {{Origin::Kind::variable, {}, {}}}};
                    if (said) bounds.push_back({"at most", variable.value, variable.origins.front()});
                    if (!said) said = std::move(variable);
                }
            }
            Row next =
                row(Side::with_key(field, policy::gpu_key_text(key)), field, said, ceiling.of_device(field, key));
            next.bounds.insert(next.bounds.begin(), bounds.begin(), bounds.end());
            out.push_back(std::move(next));
        }
    }
    for (const Field &field : policy::fields()) {
        const bool of_process = !field.pointer.starts_with("/gpu/") && !field.pointer.starts_with("/rules/") &&
                                field.pointer.find('/', 1) != std::string_view::npos;
        if (of_process)
            out.push_back(row(std::string(field.pointer), field, own.of_process(field), ceiling.of_process(field)));
    }
    return out;
}

}  // namespace curb::cli
