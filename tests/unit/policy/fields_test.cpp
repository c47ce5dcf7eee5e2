// The table of fields, the settings of a layer, and their JSON.
#include "policy/fields.hpp"

#include <cstdlib>
#include <map>
#include <set>

#include "catch.hpp"
#include "policies.hpp"
#include "policy/names.hpp"

using namespace curb::policy;
using namespace std::chrono_literals;

namespace {

// A layer with one device and every field.
Layer whole() {
    Layer layer;
    GpuRule rule = grown(
        "cuda:0", {.start = "2GiB", .step = "12.5%", .factor = 1.5, .every = 10s, .keep_free = "4GiB", .wait = 0s});
    rule.policy.cap = size("8GiB");
    rule.policy.job_cap = size("12GiB");
    rule.policy.cache = {.max = size("1GiB"), .idle = 30s};
    rule.policy.report = Report::device;
    layer.gpu = {rule};
    layer.job = {.cap = size("50%"), .of = JobOf::slurm};
    layer.release = {
        .signal = 0, .steps = std::vector{Step::pools}, .idle = 10min, .before_growth = false, .collect = true};
    layer.suspend = {.idle = 10min, .when_others_wait = 5s, .light = false, .deep = kNever, .host_memory = size("50%")};
    layer.frameworks = {.steer = true, .env = Environment{{"NAME", "value"}}};
    layer.log = {.level = LogLevel::debug, .file = "curb-%p.log"};
    layer.trace = {.file = "curb-%p.json"};
    // Set the fields that are not named above, too.
#define CURB_GPU_FIELD(pointer, type, member, ...) \
    if (!layer.gpu[0].policy.member) layer.gpu[0].policy.member.emplace();
#define CURB_JOB_FIELD(pointer, type, member, ...) \
    if (!layer.member) layer.member.emplace();
#include "policy/fields.def"
    return layer;
}

std::string with_key(std::string pointer, const std::string &key) {
    const std::size_t star = pointer.find('*');
    return star == std::string::npos ? pointer : pointer.replace(star, 1, key);
}

// Reads a JSON string with the escapes that json_text writes.
std::string read_string(std::string_view json) {
    REQUIRE(json.size() >= 2);
    REQUIRE(json.front() == '"');
    REQUIRE(json.back() == '"');
    std::string out;
    for (std::size_t i = 1; i + 1 < json.size(); ++i) {
        REQUIRE(static_cast<unsigned char>(json[i]) >= 0x20);
        REQUIRE(json[i] != '"');
        if (json[i] != '\\') {
            out += json[i];
        } else if (json[++i] == 'u') {
            const int unit = std::stoi(std::string(json.substr(i + 1, 4)), nullptr, 16);
            const auto add = [&](int byte) { out += static_cast<char>(byte); };
            if (unit >= 0x800) add(0xE0 | unit >> 12);
            if (unit >= 0x80) add(unit >= 0x800 ? 0x80 | (unit >> 6 & 0x3F) : 0xC0 | unit >> 6);
            add(unit >= 0x80 ? 0x80 | (unit & 0x3F) : unit);
            i += 4;
        } else {
            REQUIRE((json[i] == '"' || json[i] == '\\'));
            out += json[i];
        }
    }
    return out;
}

}  // namespace

// ---- the table ----

TEST_CASE("Each field of the table has a pointer of its own, a line of documentation, and a least value of its type") {
    std::set<std::string_view> pointers;
    for (const Field &field : fields()) {
        INFO(field.pointer << ": " << field.least);
        CHECK(pointers.insert(field.pointer).second);
        CHECK(field.pointer.starts_with('/'));
        CHECK_FALSE(doc_of(field).empty());
        CHECK(doc_of(field).find('\n') == std::string_view::npos);
        if (field.least.empty()) continue;
        switch (field.type) {
            case FieldType::size: CHECK(parse_size(field.least)); break;
            case FieldType::duration: CHECK(parse_duration(field.least)); break;
            case FieldType::factor: CHECK(std::strtod(std::string(field.least).c_str(), nullptr) > 1); break;
            default: FAIL("a type without an order");
        }
    }
}

// ---- settings ----

TEST_CASE("settings() has each field of a layer, in the order of the table, written as in a file") {
    std::vector<std::string> expected, written;
    for (const Field &field : fields())
        if (field.type != FieldType::ignored && field.type != FieldType::version &&
            !field.pointer.starts_with("/rules"))
            expected.push_back(with_key(std::string(field.pointer), "cuda:0"));
    std::map<std::string, std::string> values;
    for (const Setting &setting : settings(whole())) {
        written.push_back(setting.pointer);
        values[setting.pointer] = setting.value;
        REQUIRE(setting.field != nullptr);
        CHECK(setting.pointer == with_key(std::string(setting.field->pointer), "cuda:0"));
    }
    CHECK(written == expected);
    CHECK(values["/gpu/cuda:0/cap"] == R"("8GiB")");
    CHECK(values["/gpu/cuda:0/growth/factor"] == "1.5");
    CHECK(values["/gpu/cuda:0/growth/wait"] == R"("0s")");
    CHECK(values["/job/of"] == R"("slurm")");
    CHECK(values["/environment"] == "false");
    CHECK(values["/release/signal"] == R"("none")");
    CHECK(values["/release/steps"] == R"(["pools"])");
    CHECK(values["/frameworks/env"] == R"({ "NAME": "value" })");
    CHECK(values["/log/level"] == R"("debug")");
    CHECK(values["/log/file"] == R"("curb-%p.log")");
    Layer layer;
    layer.gpu = {{key("*"), {}}};
    CHECK(settings(layer).empty());
    // Devices stand in the order of the layer, each under its key.
    layer.gpu = {capped("GPU-8f3a", "1GiB"), capped("*", "1GiB"), capped("3B:00.0", "1GiB")};
    std::vector<std::string> pointers;
    for (const Setting &setting : settings(layer)) pointers.push_back(setting.pointer);
    CHECK(pointers == std::vector<std::string>{"/gpu/GPU-8f3a/cap", "/gpu/*/cap", "/gpu/0000:3b:00.0/cap"});
}

// ---- differences ----

TEST_CASE("Each field that is set or taken away is a difference of one line") {
    const std::vector<Setting> all = settings(whole());
    std::size_t row = 0;
    const auto check = [&](const Layer &less) {
        const Setting &setting = all.at(row++);
        CHECK(differences(whole(), less) ==
              std::vector<std::string>{setting.pointer + ": " + setting.value + " -> not set"});
        CHECK(differences(less, whole()) ==
              std::vector<std::string>{setting.pointer + ": not set -> " + setting.value});
    };
#define CURB_GPU_FIELD(pointer, type, member, ...) \
    {                                              \
        Layer less = whole();                      \
        less.gpu[0].policy.member.reset();         \
        check(less);                               \
    }
#define CURB_JOB_FIELD(pointer, type, member, ...) \
    {                                              \
        Layer less = whole();                      \
        less.member.reset();                       \
        check(less);                               \
    }
#include "policy/fields.def"
    CHECK(row == all.size());
}

TEST_CASE("Differences list changed, removed, then added fields; devices are compared by key") {
    CHECK(differences(whole(), whole()).empty());
    Layer changed = whole();
    changed.gpu[0].policy.cap = size("4GiB");
    changed.log.level = LogLevel::off;
    CHECK(differences(whole(), changed) ==
          std::vector<std::string>{R"(/gpu/cuda:0/cap: "8GiB" -> "4GiB")", R"(/log/level: "debug" -> "off")"});
    Layer before, after;
    before.gpu = {capped("*", "8GiB"), capped("cuda:0", "1GiB")};
    after.gpu = {capped("cuda:1", "2GiB"), capped("*", "8GiB")};
    after.release.idle = 10min;
    CHECK(differences(before, after) == std::vector<std::string>{R"(/gpu/cuda:0/cap: "1GiB" -> not set)",
                                                                 R"(/gpu/cuda:1/cap: not set -> "2GiB")",
                                                                 R"(/release/idle: not set -> "10m")"});
}

// ---- values ----

TEST_CASE("A text reads back from JSON as it was, whatever bytes are in it") {
    std::string every;
    for (int c = 0; c < 256; ++c) every += static_cast<char>(c);
    for (const std::string &text : {std::string(), std::string("a\"b\\c"), std::string("\\u0041"), every})
        CHECK(read_string(json_text(text)) == text);
    CHECK(json_text(std::string("a\nb\"")) == R"("a\u000ab\"")");
}

TEST_CASE("A text has no character in JSON on which a terminal acts, and reads back all the same") {
    const std::string text = "\x7F \u0080 \u009B \u009F \u061C \u200E \u2028 \u202A \u202E \u2066 \u2069";
    CHECK(json_text(text) == R"("\u007f \u0080 \u009b \u009f \u061c \u200e \u2028 \u202a \u202e \u2066 \u2069")");
    CHECK(read_string(json_text(text)) == text);
    const std::string others = "~ \u00A0 \u00E9 \u200D \u2027 \u202F \u2065 \u206A \uFFFD \U0001F600";
    CHECK(json_text(others) == '"' + others + '"');
}

TEST_CASE("Other values read back from JSON as they were") {
    for (const char *text : {"0B", "1B", "8GiB", "12345B", "75%", "0.01%", "18446744073709551615B"})
        CHECK(*parse_size(read_string(json_text(*parse_size(text)))) == *parse_size(text));
    for (const Duration duration : {Duration(0), Duration(1), Duration(90'000), kLongest, kNever})
        CHECK(*parse_delay(read_string(json_text(duration))) == duration);
    for (const double factor : {1.01, 1.1, 1.5, 1.333333, 2.0, 10.000001, 100.0})
        CHECK(std::strtod(json_text(factor).c_str(), nullptr) == factor);
    CHECK(json_text(2.0) == "2");
    for (const char *signal : {"none", "SIGUSR1", "SIGHUP", "SIGRTMIN", "SIGRTMIN+3"})
        CHECK(read_string(json_text(*parse_signal(signal))) == signal);
    for (const Report report : {Report::cap, Report::device})
        CHECK(*parse_report(read_string(json_text(report))) == report);
    for (int level = 0; level <= static_cast<int>(LogLevel::off); ++level)
        CHECK(*parse_log_level(read_string(json_text(static_cast<LogLevel>(level)))) == static_cast<LogLevel>(level));
}

TEST_CASE("Lists and environments are written as arrays and objects") {
    CHECK(json_text(std::vector<Step>{}) == "[]");
    CHECK(json_text(std::vector{Step::pools}) == R"(["pools"])");
    CHECK(json_text(std::vector{Step::frameworks, Step::pools}) == R"(["frameworks", "pools"])");
    CHECK(json_text(Environment{}) == "{}");
    CHECK(json_text(Environment{{"A", "1"}}) == R"({ "A": "1" })");
    CHECK(json_text(Environment{{"A", "a\"b"}, {"B", ""}}) == R"({ "A": "a\"b", "B": "" })");
}
