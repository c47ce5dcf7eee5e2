// The schema describes what the reader of each type of field accepts (parse/values.cpp and policy/). tests/schema/
// compares the two and lists what a schema cannot express.
#include "config/schema.hpp"

#include <signal.h>

#include <chrono>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "parse/keys.hpp"
#include "parse/values.hpp"
#include "policy/fields.hpp"
#include "policy/names.hpp"
#include "policy/values/size.hpp"

namespace curb::config {
namespace {

using json = nlohmann::ordered_json;
using policy::FieldType;

// ---- regular expressions that every engine supports ----

std::string group(const std::string &inside) { return "(" + inside + ")"; }
std::string anchored(const std::string &inside) { return "^" + group(inside) + "$"; }
std::string digits(std::size_t least, std::size_t most) {
    if (most == 0) return {};
    if (least == 1 && most == 1) return "[0-9]";
    const std::string low = std::to_string(least), high = std::to_string(most);
    return "[0-9]{" + (least == most ? low : low + "," + high) + "}";
}

// One digit from `low` to `high`. Empty if there is none.
std::string digit(char low, char high) {
    if (low > high) return {};
    return low == high ? std::string(1, low) : std::string("[") + low + "-" + high + "]";
}

// Numbers up to `most` with as many digits, without leading zeros.
std::string as_long_as(const std::string &most) {
    std::string out;
    for (std::size_t i = 0; i < most.size(); ++i) {
        const std::string less = digit(i == 0 ? '1' : '0', static_cast<char>(most[i] - 1));
        const std::size_t rest = most.size() - i - 1;
        if (!less.empty()) out += most.substr(0, i) + less + digits(rest, rest) + "|";
    }
    return out + most;
}

// Whole numbers up to `most`, leading zeros allowed.
std::string up_to(std::uint64_t most) {
    const std::string last = std::to_string(most);
    return "0*" + group(digits(1, last.size() - 1) + "|" + as_long_as(last));
}

// The same without leading zeros, as policy::whole_number reads them.
std::string plain_up_to(std::uint64_t most) {
    const std::string last = std::to_string(most);
    return group("0|[1-9]" + digits(0, last.size() - 2) + "|" + as_long_as(last));
}

std::string size_pattern() {
    constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
    struct Unit {
        const char *names;
        unsigned shift;
    };
    constexpr Unit kUnits[] = {{"TiB|T", 40}, {"GiB|G", 30}, {"MiB|M", 20}, {"KiB|K", 10}};
    std::string out = "0|";
    // Eighteen decimals, and zeros: 64 bits hold so many exactly.
    for (const Unit &unit : kUnits)
        out += up_to(kMost >> unit.shift) + R"((\.[0-9]{1,18}0*)? *)" + group(unit.names) + "|";
    out += up_to(kMost) + R"((\.0+)? *B|)";
    return anchored(out + R"(0*([0-9]{1,2}(\.[0-9]{1,2}0*)?|100(\.0+)?) *%)");
}

std::string duration_pattern() {
    struct Unit {
        const char *name;
        std::chrono::milliseconds length;
    };
    using namespace std::chrono_literals;
    constexpr Unit kUnits[] = {{"d", 24h}, {"h", 1h}, {"m", 1min}, {"s", 1s}, {"ms", 1ms}};
    std::string out;
    for (const Unit &unit : kUnits) {
        const auto most = static_cast<std::uint64_t>(policy::kLongest / unit.length);
        out += (out.empty() ? "" : "|") + up_to(most) + unit.name;
    }
    return anchored(out);
}

// A UUID, 8-4-4-4-12, or its beginning.
std::string uuid_pattern(const std::string &prefix) {
    constexpr const char *kHex = "[0-9A-Fa-f]";
    std::string rest = std::string("-") + kHex + "{0,12}";
    for (int i = 0; i < 3; ++i) rest = std::string("-(") + kHex + "{0,3}|" + kHex + "{4}" + group(rest) + "?)";
    return "^" + prefix + group(std::string(kHex) + "{1,7}|" + kHex + "{8}" + group(rest) + "?") + "$";
}

// ---- types ----

json strings_like(const std::string &pattern) { return {{"type", "string"}, {"pattern", pattern}}; }

constexpr const char *kWithoutNul = R"(^[^\u0000]*$)";
constexpr const char *kOnOneLine = R"(^[^\u0000-\u001f\u007f]*$)";
constexpr const char *kVariableName = "^[A-Za-z_][A-Za-z0-9_]*$";

json one_of(const std::vector<std::string> &names) { return {{"enum", names}}; }

json variables(json names, json values) {
    return {{"type", "object"}, {"propertyNames", std::move(names)}, {"additionalProperties", std::move(values)}};
}

// The signals that parse_signal() accepts.
json signals() {
    std::vector<std::string> names;
    for (int signal = 0; signal < SIGRTMIN; ++signal) {
        std::string name = policy::signal_name(signal);
        if (policy::parse_signal(name)) names.push_back(std::move(name));
    }
    const std::string above = plain_up_to(static_cast<std::uint64_t>(SIGRTMAX - SIGRTMIN));
    return {{"anyOf", {one_of(names), strings_like(R"(^SIGRTMIN(\+)" + above + ")?$")}}};
}

json steps() {
    std::vector<std::string> names;
    for (const policy::Step step : policy::all_steps()) names.emplace_back(policy::step_name(step));
    return {{"type", "array"}, {"items", one_of(names)}, {"uniqueItems", true}};
}

// The names of an enumeration whose last value is `last`.
template <class Enum>
json named(Enum last, const char *(*name_of)(Enum) noexcept) {
    std::vector<std::string> names;
    for (int i = 0; i <= static_cast<int>(last); ++i) names.emplace_back(name_of(static_cast<Enum>(i)));
    return one_of(names);
}

// A type in the definitions of the schema.
struct Type {
    const char *name;
    const char *title;
    const char *description;
    json schema;
};

Type type_of(const policy::Field &field) {
    // A size or time with a minimum in the table must only be above zero: it has a digit from 1 to 9.
    const bool positive = !field.least.empty();
    switch (field.type) {
        case FieldType::ignored: return {"ignored", "a string", "", {{"type", "string"}}};
        case FieldType::version: return {"version", "1", "the version of this format", {{"const", 1}}};
        case FieldType::size:
            if (positive)
                return {"positive_size", "a size above 0", "", {{"$ref", "#/$defs/size"}, {"pattern", "[1-9]"}}};
            return {"size", "a size",
                    "a number and a unit, TiB, GiB, MiB, KiB or B (T, G, M, K), or a percentage of the device",
                    strings_like(size_pattern())};
        case FieldType::duration:
            if (positive)
                return {"positive_time", "a time above 0", "", {{"$ref", "#/$defs/time"}, {"pattern", "[1-9]"}}};
            return {"time", "a time", "a whole number and a unit, d, h, m, s or ms; at most a year",
                    strings_like(duration_pattern())};
        case FieldType::delay:
            return {"delay", "a time, or \"never\"", "", strings_like("^never$|" + duration_pattern())};
        case FieldType::factor:
            return {"factor",
                    "a factor",
                    "a number without quotes",
                    {{"type", "number"}, {"minimum", json::parse(field.least)}, {"maximum", kLargestFactor}}};
        case FieldType::flag: return {"flag", "true or false", "", {{"type", "boolean"}}};
        case FieldType::report:
            return {"report", "what to report", "", named(policy::Report::device, policy::report_name)};
        case FieldType::job_of:
            return {"job_of", "which processes are a job", "", named(policy::JobOf::user, policy::job_of_name)};
        case FieldType::share:
            return {"share", "what other users see", "", named(policy::Share::none, policy::share_name)};
        case FieldType::signal:
            return {"signal", "a signal", "one that programs can do without, by its name, or \"none\"", signals()};
        case FieldType::steps: return {"steps", "release steps", "an array, each step in it once", steps()};
        case FieldType::environment:
            return {"environment", "variables", "an object of strings; no names that begin with LD_ or CURB_",
                    variables({{"pattern", kVariableName}, {"not", {{"pattern", "^(LD_|CURB_)"}}}},
                              strings_like(kWithoutNul))};
        case FieldType::level:
            return {"level", "a log level", "", named(policy::LogLevel::off, policy::log_level_name)};
        case FieldType::path: return {"path", "a path", "", strings_like(kWithoutNul)};
        case FieldType::text: return {"text", "a text", "on one line", strings_like(kOnOneLine)};
        case FieldType::pattern:
            return {"glob", "a glob",
                    "must match the whole text; '*' is any text, '?' one byte, \"[a-z]\" one of a set, \"[!a-z]\" one "
                    "outside it, '\\' "
                    "before a mark is the mark itself",
                    strings_like(kWithoutNul)};
        case FieldType::patterns:
            return {"globs", "variables with a glob each", "an object of globs",
                    variables({{"pattern", kVariableName}}, {{"$ref", "#/$defs/glob"}})};
    }
    return {};
}

// ---- fields and their objects ----

const char *holds_under_a_ceiling(policy::Holds holds) {
    switch (holds) {
        case policy::Holds::lower: return "under a ceiling: the lower value";
        case policy::Holds::higher: return "under a ceiling: the higher value";
        case policy::Holds::own: break;
    }
    return nullptr;
}

json field_schema(const policy::Field &field) {
    json out{{"$ref", std::string("#/$defs/") + type_of(field).name}};
    out["description"] = policy::doc_of(field);
    if (const std::string fallback = field.fallback(); !fallback.empty()) out["default"] = json::parse(fallback);
    if (const char *holds = holds_under_a_ceiling(field.holds)) out["$comment"] = holds;
    return out;
}

// The objects of a file. Those with a definition stand in rules too.
struct Object {
    std::string_view pointer;
    const char *definition;
    const char *description;
};
constexpr Object kObjects[] = {
    {"", nullptr, "what curb keeps a process's GPU memory within"},
    {"/gpu/*", "device", "what holds for the devices that a key names"},
    {"/gpu/*/growth", nullptr,
     "how the allowance grows towards the cap; absent: all of the cap may be held from the start"},
    {"/gpu/*/cache", nullptr, "freed memory that curb keeps for reuse"},
    {"/job", "job", "one cap for all processes of a job"},
    {"/release", "release", "how memory that is cached goes back to the device"},
    {"/suspend", "suspend", "when a process leaves its GPUs by itself"},
    {"/frameworks", "frameworks", "the environment by which frameworks are steered"},
    {"/log", "log", "what curb says, and where"},
    {"/trace", "trace", "a record of what the program did"},
    {"/rules/*", "rule", "what is laid over the rest of the file for the processes that match"},
    {"/rules/*/match", nullptr, "what must be so of the process, all of it; empty: every process matches"},
};

json object_schema(std::string_view pointer) {
    json out = json::object();
    for (const Object &object : kObjects)
        if (object.pointer == pointer) out["description"] = object.description;
    out["type"] = "object";
    out["properties"] = json::object();
    out["additionalProperties"] = false;
    return out;
}

// Returns the schema of the object `pointer`: in `definitions` if it has one there, else within `file`. Makes it if it
// is missing.
json &object_at(json &file, json &definitions, std::string_view pointer) {
    if (pointer.empty()) return file;
    json *place = nullptr;
    for (const Object &object : kObjects)
        if (object.pointer == pointer && object.definition != nullptr) place = &definitions[object.definition];
    if (place == nullptr) {
        const std::size_t slash = pointer.rfind('/');
        json &parent = object_at(file, definitions, pointer.substr(0, slash));
        place = &parent["properties"][std::string(pointer.substr(slash + 1))];
    }
    if (place->is_null()) *place = object_schema(pointer);
    return *place;
}

json reference(std::string_view definition) { return {{"$ref", "#/$defs/" + std::string(definition)}}; }

// The device keys that policy/values/gpu_key.cpp reads, with all spellings of a PCI id.
json devices() {
    const std::string ordinal = plain_up_to(static_cast<std::uint64_t>(std::numeric_limits<int>::max()));
    const json device = reference("device");
    json patterns = json::object();
    patterns["^cuda:" + ordinal + "$"] = device;
    patterns["^nvml:" + ordinal + "$"] = device;
    patterns[uuid_pattern("GPU-")] = device;
    patterns[uuid_pattern("MIG-")] = device;
    patterns["^([0-9A-Fa-f]{1,8}:)?[0-9A-Fa-f]{1,2}:[01]?[0-9A-Fa-f]\\.[0-7]$"] = device;
    return {{"description",
             "what holds for which devices: \"*\" (every one), \"cuda:0\" (as the process counts), \"nvml:0\" (as "
             "nvidia-smi counts), \"GPU-8f3a\" or \"MIG-8f3a\" (a UUID or its beginning), \"0000:3b:00.0\" (a PCI id)"},
            {"type", "object"},
            {"properties", {{"*", device}}},
            {"patternProperties", std::move(patterns)},
            {"additionalProperties", false}};
}

}  // namespace

std::string schema() {
    json file = object_schema("");
    json objects{{"gpu", devices()}};
    json types = json::object();
    for (const policy::Field &field : policy::fields()) {
        const std::size_t slash = field.pointer.rfind('/');
        json &object = object_at(file, objects, field.pointer.substr(0, slash));
        object["properties"][std::string(field.pointer.substr(slash + 1))] = field_schema(field);
        const Type type = type_of(field);
        json &definition = types[type.name];
        definition["title"] = type.title;
        if (*type.description != '\0') definition["description"] = type.description;
        definition.update(type.schema);
    }
    // Rules have the same objects as the file, and those of its own fields that a rule may have.
    json &rule = objects["rule"];
    for (const auto &[name, field] : file["properties"].items())
        if (is_field("/rules/*/" + name)) rule["properties"][name] = field;
    for (json *holder : {&file, &rule}) {
        (*holder)["properties"]["gpu"] = reference("gpu");
        for (const Object &object : kObjects)
            if (object.definition != nullptr && object.pointer.find('*') == std::string_view::npos)
                (*holder)["properties"][object.definition] = reference(object.definition);
    }
    file["properties"]["rules"] = {
        {"description", "the first that matches a process is laid over the rest of the file"},
        {"type", "array"},
        {"items", reference("rule")}};
    file["required"] = {"version"};
    rule["required"] = {"match"};
    objects["device"]["properties"]["growth"]["not"] = {{"required", {"step", "factor"}}};

    json out{{"$schema", "https://json-schema.org/draft/2020-12/schema"}, {"title", "a policy of curb"}};
    out.update(file);
    out["$defs"] = std::move(objects);
    out["$defs"].update(types);
    return out.dump(2) + "\n";
}

}  // namespace curb::config
