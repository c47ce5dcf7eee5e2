#include "policy/fields.hpp"

#include <algorithm>
#include <array>
#include <cstdint>

#include "policy/names.hpp"
#include "policy/values/words.hpp"

namespace curb::policy {
namespace {

constexpr auto kFields = std::to_array<Field>({
#define CURB_GPU_FIELD(pointer, type, member, least, fallback, holds, doc) \
    {pointer, FieldType::type, least, [] { return json_text(fallback); }, Holds::holds},
#define CURB_JOB_FIELD CURB_GPU_FIELD
#define CURB_RULE_FIELD(pointer, type, member, doc) \
    {pointer, FieldType::type, "", [] { return std::string(); }, Holds::own},
#define CURB_FILE_FIELD(pointer, type, doc) CURB_RULE_FIELD(pointer, type, , doc)
#include "policy/fields.def"
});

const Field *field_of(std::string_view pointer) {
    return std::find_if(kFields.begin(), kFields.end(), [&](const Field &field) { return field.pointer == pointer; });
}

// Replaces the "*" of `pointer` by the key.
std::string with_key(std::string_view pointer, std::string_view key) {
    const std::size_t star = pointer.find('*');
    std::string out(pointer.substr(0, star));
    return out.append(pointer_token(key)).append(pointer.substr(star + 1));
}

}  // namespace

std::span<const Field> fields() noexcept { return kFields; }

std::vector<Setting> settings(const Layer &layer) {
    std::vector<Setting> out;
    for (const GpuRule &rule : layer.gpu) {
        const std::string key = gpu_key_text(rule.key);
#define CURB_GPU_FIELD(pointer, type, member, least, fallback, holds, doc) \
    if (rule.policy.member) out.push_back({with_key(pointer, key), json_text(*rule.policy.member), field_of(pointer)});
#include "policy/fields.def"
    }
#define CURB_JOB_FIELD(pointer, type, member, least, fallback, holds, doc) \
    if (layer.member) out.push_back({pointer, json_text(*layer.member), field_of(pointer)});
#include "policy/fields.def"
    return out;
}

std::vector<std::string> differences(const Layer &before, const Layer &after) {
    const std::vector<Setting> was = settings(before), is = settings(after);
    const auto value_in = [](const std::vector<Setting> &all, const std::string &pointer) {
        const auto found =
            std::find_if(all.begin(), all.end(), [&](const Setting &one) { return one.pointer == pointer; });
        return found == all.end() ? std::string("not set") : found->value;
    };
    std::vector<std::string> out;
    for (const Setting &one : was) {
        const std::string now = value_in(is, one.pointer);
        if (now != one.value) out.push_back(one.pointer + ": " + one.value + " -> " + now);
    }
    for (const Setting &one : is)
        if (value_in(was, one.pointer) == "not set") out.push_back(one.pointer + ": not set -> " + one.value);
    return out;
}

std::string json_text(const std::string &value) {
    constexpr std::string_view kHex = "0123456789abcdef";
    std::string out = "\"";
    for (std::size_t i = 0, length = 0; i < value.size(); i += length) {
        length = std::max<std::size_t>(character(value, i), 1);
        const std::string_view one = std::string_view(value).substr(i, length);
        if (one == "\"" || one == "\\") out += '\\';
        if (!is_acted_on(one)) {
            out += one;
            continue;
        }
        unsigned code = static_cast<unsigned char>(one[0]) & (length == 1 ? 0x7FU : length == 2 ? 0x1FU : 0xFU);
        for (const char c : one.substr(1)) code = code << 6 | (static_cast<unsigned char>(c) & 0x3FU);
        out += "\\u";
        for (const int shift : {12, 8, 4, 0}) out += kHex[code >> shift & 0xF];
    }
    return out + '"';
}

std::string json_text(const Size &value) { return json_text(format(value)); }

std::string json_text(double value) {
    const auto millionths = static_cast<std::uint64_t>(value * 2e6 + 1) / 2;  // rounded
    std::string decimals = std::to_string(1'000'000 + millionths % 1'000'000);
    decimals.erase(decimals.find_last_not_of('0') + 1);
    decimals[0] = '.';
    return std::to_string(millionths / 1'000'000) + (decimals.size() > 1 ? decimals : "");
}

std::string json_text(Duration value) { return value == kNever ? R"("never")" : json_text(format(value)); }
std::string json_text(bool value) { return value ? "true" : "false"; }
std::string json_text(Report value) { return json_text(std::string(report_name(value))); }
std::string json_text(JobOf value) { return json_text(std::string(job_of_name(value))); }
std::string json_text(Share value) { return json_text(std::string(share_name(value))); }
std::string json_text(int signal) { return json_text(signal_name(signal)); }
std::string json_text(LogLevel value) { return json_text(std::string(log_level_name(value))); }
std::string json_text(std::nullopt_t /*none*/) { return {}; }

std::string json_text(const std::vector<Step> &value) {
    return "[" + joined(value, ", ", [](Step step) { return json_text(std::string(step_name(step))); }) + "]";
}

std::string json_text(const Environment &value) {
    if (value.empty()) return "{}";
    return "{ " +
           joined(value, ", ", [](const auto &one) { return json_text(one.first) + ": " + json_text(one.second); }) +
           " }";
}

}  // namespace curb::policy
