// Checks of every field in the table, in files and in the schema, and of files with very many fields.
#include <algorithm>
#include <cctype>
#include <ctime>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bad_policies.hpp"
#include "catch.hpp"
#include "config/load.hpp"
#include "config/schema.hpp"
#include "policy/fields.hpp"

using namespace curb;
using config::Diagnostics;
using config::parse;
using Json = nlohmann::json;

namespace {

#ifdef CURB_SANITIZED
constexpr int kSeconds = 100;
#else
constexpr int kSeconds = 20;
#endif

// A field of a file or of a rule: its pointer, with "*" for every key and item, its type, and its least value.
struct FieldOfFile {
    std::string pattern, type, least;
};
std::vector<FieldOfFile> every_field() {
    return {
#define CURB_FILE_FIELD(pointer, type, ...) {pointer, #type, ""},
#define CURB_GPU_FIELD(pointer, type, member, least, ...) {pointer, #type, least}, {"/rules/*" pointer, #type, least},
#define CURB_JOB_FIELD(pointer, type, member, least, ...) {pointer, #type, least}, {"/rules/*" pointer, #type, least},
#define CURB_RULE_FIELD(pointer, type, ...) {pointer, #type, ""},
#include "policy/fields.def"
    };
}

// Returns a file in which the field has this value, on a line of its own, and the pointer as the file spells it.
std::pair<std::string, std::string> file_with(std::string pattern, const std::string &value) {
    std::string before = pattern == "/version" ? "{" : "{\"version\": 1, ", after = "}", pointer;
    while (!pattern.empty()) {
        pattern.erase(0, 1);
        const std::string token = pattern.substr(0, pattern.find('/'));
        pattern.erase(0, token.size());
        if (token == "*" && pointer == "/rules") {
            before += pattern.starts_with("/match") ? "" : "\"match\": {}, ";
            pointer += "/0";
            continue;
        }
        pointer += "/" + token;
        before += "\"" + token + "\": " + (token == "rules" ? "[{" : pattern.empty() ? "\n" : "{");
        after.insert(0, token == "rules" ? "}]" : pattern.empty() ? "" : "}");
    }
    return {before + value + after, pointer};
}

// Returns the schema of a value. Follows "$ref".
const Json &resolved(const Json &all, const Json &one) {
    if (!one.contains("$ref")) return one;
    return resolved(all, all.at(Json::json_pointer(one.at("$ref").get<std::string>().substr(1))));
}

// Returns the schema of the member of that name; of "*": of an array's items or of all other members. Null if there is
// none.
const Json *within(const Json &object, const std::string &name) {
    if (name != "*")
        return object.contains("properties") && object["properties"].contains(name) ? &object["properties"][name]
                                                                                    : nullptr;
    for (const char *others : {"items", "additionalProperties"})
        if (object.contains(others) && object[others].is_object()) return &object[others];
    if (object.contains("patternProperties")) return &object["patternProperties"].begin().value();
    return nullptr;
}

}  // namespace

TEST_CASE("Every field refuses values of other types; the error has their place and an example") {
    const std::map<std::string, std::string> right = {
        {"ignored", R"("x")"},   {"version", "1"},        {"size", R"("8GiB")"},      {"factor", "1.5"},
        {"duration", R"("1s")"}, {"report", R"("cap")"},  {"signal", R"("SIGUSR1")"}, {"steps", "[]"},
        {"job_of", R"("user")"}, {"share", R"("none")"},  {"flag", "true"},           {"environment", "{}"},
        {"level", R"("info")"},  {"path", R"("x")"},      {"text", R"("x")"},         {"pattern", R"("x")"},
        {"patterns", "{}"},      {"delay", R"("never")"},
    };
    for (const auto &[pattern, type, least] : every_field()) {
        REQUIRE(right.contains(type));
        const std::string &good = right.at(type);
        for (const std::string value : {"null", "true", "2.5", "\"\\u0001?\"", "[1]", "{\"?\": 1}"}) {
            const bool same_kind = value.front() == good.front() || (type == "flag" && value == "true") ||
                                   (std::isdigit(good.front()) && std::isdigit(value.front()));
            if (same_kind &&
                (type == "flag" || type == "factor" || type == "path" || type == "pattern" || type == "ignored"))
                continue;
            const auto [text, pointer] = file_with(pattern, value);
            INFO(text);
            const Diagnostics found = errors(text);
            REQUIRE(!found.empty());
            CHECK(found[0].pointer.starts_with(pointer));
            CHECK(found[0].line == 2);
            if (!same_kind) {
                CHECK(found[0].column == 1);
                CHECK_THAT(found[0].message, contains(", not "));
            }
        }
        // A right value is read there, unless growth lacks the fields that it needs.
        const auto [text, pointer] = file_with(pattern, good);
        const auto fine = parse(text, "job.json");
        INFO(text);
        CHECK((fine ? fine->places.contains(pointer) : pattern.find("/growth/") != std::string::npos));
    }
}

TEST_CASE("Every field that has a least value refuses less; every type of field has a mistake in bad_policies.hpp") {
    const std::map<std::string, std::string> below = {{"size", R"("0B")"}, {"duration", R"("0ms")"}, {"factor", "1"}};
    std::map<std::string, bool> has_mistake;
    for (const auto &[pattern, type, least] : every_field()) {
        has_mistake[type] |= std::any_of(kBad.begin(), kBad.end(), [&, &field = pattern](const Bad &bad) {
            std::string pointer = bad.pointer;
            if (pointer.starts_with("/rules/0")) pointer.replace(7, 1, "*");
            return pointer == field || pointer.starts_with(field + "/");
        });
        if (least.empty()) continue;
        const auto [text, pointer] = file_with(pattern, below.at(type));
        const Diagnostics found = errors(text);
        CHECK(found[0].pointer == pointer);
        CHECK_THAT(found[0].message, contains(least));
    }
    for (const auto &[type, has] : has_mistake) {
        INFO(type);
        CHECK(has);
    }
}

TEST_CASE("Every field of the table is in the schema, with its documentation") {
    const Json all = Json::parse(config::schema());
    for (const policy::Field &field : policy::fields()) {
        const std::string pointer(field.pointer);
        INFO(pointer);
        const Json *at = &all;
        for (std::size_t begin = 1; begin < pointer.size();) {
            const std::size_t end = std::min(pointer.find('/', begin), pointer.size());
            at = within(resolved(all, *at), pointer.substr(begin, end - begin));
            REQUIRE(at != nullptr);
            begin = end + 1;
        }
        CHECK_THAT(at->value("description", ""), contains(std::string(policy::doc_of(field)).substr(0, 20)));
    }
}

TEST_CASE("A rule conflicts only through the devices that it names") {
    // "every" of "*" applies to cuda:1, which has a start. A rule for cuda:0 does not change that.
    const std::string base = R"({"version": 1, "gpu": {"*": {"growth": {"every": "1s"}}, "cuda:0": {},
        "cuda:1": {"growth": {"start": "2GiB", "step": "1GiB"}}, "cuda:2": {"cap": "8GiB"}}, "rules": [{"match": {}, )";
    CHECK(parse(base + R"("gpu": {"cuda:0": {"report": "cap"}}}]})", "job.json"));
    CHECK(parse(base + R"("gpu": {"cuda:2": {"cap": "1GiB"}}}]})", "job.json"));
    const auto conflict = [&](const std::string &rule) { return errors(base + rule + "}]}").front().message; };
    CHECK_THAT(conflict(R"("gpu": {"cuda:1": {"cap": "1GiB"}})"),
               contains("rule 1 laid over: it begins above the cap"));
    CHECK_THAT(conflict(R"("gpu": {"*": {"cap": "1GiB"}})"), contains("rule 1 laid over: it begins above the cap"));
    CHECK_THAT(conflict(R"("gpu": {"cuda:2": {"growth": {"start": "9GiB", "step": "1B"}}})"),
               contains("rule 1 laid over: it begins above the cap"));
    CHECK_THAT(conflict(R"("gpu": {"cuda:0": {"growth": {"step": "1GiB"}}})"), contains("no effect without"));
}

TEST_CASE("The longest file is read in seconds, though it names thousands of devices and has thousands of rules") {
    constexpr std::size_t kHalf = std::size_t{512} << 10;
    std::string text = R"({"version": 1, "gpu": {"*": {})";
    for (unsigned i = 0; text.size() < kHalf; ++i) text += ",\"cuda:" + std::to_string(i) + R"(":{"cap":"1GiB"})";
    text += R"(}, "rules": [{"match": {}})";
    while (text.size() < 2 * kHalf - 64) text += R"(,{"match":{},"gpu":{"cuda:1":{"cap":"1GiB"}}})";
    const std::clock_t begin = std::clock();  // CPU time of this process: the machine may be busy
    CHECK(parse(text + "]}", "job.json"));
    CHECK((std::clock() - begin) / CLOCKS_PER_SEC < kSeconds);
}

TEST_CASE("A file with too many devices and rules to check together is refused in seconds") {
    std::string text = R"({"version": 1, "gpu": {"*": {})", rule = R"({"match": {}, "gpu": {"*": {})", rules;
    for (unsigned i = 0; i < 10'000; ++i) {
        text += ",\"cuda:" + std::to_string(i) + "\":{}";
        rule += ",\"nvml:" + std::to_string(i) + "\":{}";
        rules += R"(,{"match":{},"gpu":{"*":{}}})";
    }
    text += R"(}, "rules": [)" + rule + "}}";
    const std::clock_t begin = std::clock();
    CHECK(parse(text + "]}", "job.json"));
    CHECK(errors(text + rules + "]}").front().message ==
          "10001 devices and 10001 rules are too many to check together; divide the file");
    CHECK((std::clock() - begin) / CLOCKS_PER_SEC < kSeconds / 2);
}
