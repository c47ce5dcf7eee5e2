// The table of fields, what a layer says by it, and how it says it.
#include "policy/fields.hpp"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "catch.hpp"
#include "policies.hpp"
#include "policy/names.hpp"

using namespace curb::policy;
using namespace std::chrono_literals;

namespace {

// One device and all else that a layer can say.
Layer whole() {
    Layer layer;
    GpuRule rule = grown(
        "cuda:0", {.start = "2GiB", .step = "12.5%", .factor = 1.5, .every = 10s, .keep_free = "4GiB", .wait = 0s});
    rule.policy.cap = size("8GiB");
    rule.policy.cache = {.max = size("1GiB"), .idle = 30s};
    rule.policy.report = Report::device;
    layer.gpu = {rule};
    layer.release = {
        .signal = 0, .steps = std::vector{Step::pools}, .idle = 10min, .before_growth = false, .collect = true};
    layer.frameworks = {.steer = true, .env = Environment{{"NAME", "value"}}};
    layer.log = {.level = LogLevel::debug, .file = "curb-%p.log"};
    layer.trace = {.file = "curb-%p.json"};
    // Fields that are not named here say something too.
#define CURB_GPU_FIELD(pointer, type, member, ...) \
    if (!layer.gpu[0].policy.member) layer.gpu[0].policy.member.emplace();
#define CURB_JOB_FIELD(pointer, type, member, ...) \
    if (!layer.member) layer.member.emplace();
#include "policy/fields.def"
    return layer;
}

// The pointers of what layers say, as the table has them.
std::vector<std::string> of_layers() {
    std::vector<std::string> out;
#define CURB_GPU_FIELD(pointer, ...) out.emplace_back(pointer);
#define CURB_JOB_FIELD(pointer, ...) out.emplace_back(pointer);
#include "policy/fields.def"
    return out;
}

std::string with_key(std::string pointer, const std::string &key) {
    const std::size_t star = pointer.find('*');
    return star == std::string::npos ? pointer : pointer.replace(star, 1, key);
}

// What a JSON string says, for the escapes that are written.
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
            out += static_cast<char>(std::stoi(std::string(json.substr(i + 1, 4)), nullptr, 16));
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

TEST_CASE("Each field of the table has a pointer of its own and a line of documentation") {
    std::set<std::string_view> pointers;
    for (const Field &field : fields()) {
        INFO(field.pointer);
        CHECK(pointers.insert(field.pointer).second);
        CHECK(field.pointer.starts_with('/'));
        CHECK_FALSE(field.doc.empty());
        CHECK(field.doc.find('\n') == std::string_view::npos);
    }
}

TEST_CASE("The least value of a field can be read as the field's type") {
    for (const Field &field : fields()) {
        if (field.least.empty()) continue;
        INFO(field.pointer << ": " << field.least);
        switch (field.type) {
            case FieldType::size: CHECK(parse_size(field.least)); break;
            case FieldType::duration: CHECK(parse_duration(field.least)); break;
            case FieldType::factor: CHECK(std::strtod(std::string(field.least).c_str(), nullptr) > 1); break;
            default: FAIL("a type without an order");
        }
    }
}

TEST_CASE("The fallback of a field of the process is what holds without a policy") {
    const auto in_force = settings(Policy());
    int checked = 0;
    for (const Field &field : fields()) {
        const std::string pointer(field.pointer);
        if (pointer.starts_with("/gpu/") || field.fallback().empty()) continue;
        INFO(pointer);
        const auto found = std::find_if(in_force.begin(), in_force.end(),
                                        [&](const Setting &setting) { return setting.pointer == pointer; });
        REQUIRE(found != in_force.end());
        CHECK(found->value == field.fallback());
        ++checked;
    }
    CHECK(checked == static_cast<int>(in_force.size()));
}

TEST_CASE("The fallback of a field of a device means the same as leaving the field out") {
    const auto fallback = [](std::string_view pointer) {
        for (const Field &field : fields())
            if (field.pointer == pointer) return field.fallback();
        return std::string("no such field");
    };
    CHECK(fallback("/gpu/*/cap").empty());
    CHECK(fallback("/gpu/*/growth/start").empty());
    CHECK(fallback("/gpu/*/growth/every") == "\"0s\"");
    CHECK(fallback("/gpu/*/growth/keep_free") == "\"0B\"");
    CHECK(fallback("/gpu/*/growth/wait") == "\"0s\"");
    CHECK(fallback("/gpu/*/cache/idle") == "\"30s\"");
    CHECK(fallback("/gpu/*/report") == "\"cap\"");
}

// ---- what a layer says ----

TEST_CASE("A layer that says everything has a setting for each field, in the order of the table") {
    std::vector<std::string> pointers, expected;
    for (const Setting &setting : settings(whole())) {
        pointers.push_back(setting.pointer);
        REQUIRE(setting.field != nullptr);
        CHECK(with_key(std::string(setting.field->pointer), "cuda:0") == setting.pointer);
    }
    for (const std::string &pointer : of_layers()) expected.push_back(with_key(pointer, "cuda:0"));
    CHECK(pointers == expected);
}

TEST_CASE("Settings are written as a file writes them") {
    std::map<std::string, std::string> written;
    for (const Setting &setting : settings(whole())) written[setting.pointer] = setting.value;
    const std::pair<const char *, const char *> expected[] = {
        {"/gpu/cuda:0/cap", R"("8GiB")"},
        {"/gpu/cuda:0/growth/start", R"("2GiB")"},
        {"/gpu/cuda:0/growth/step", R"("12.5%")"},
        {"/gpu/cuda:0/growth/factor", "1.5"},
        {"/gpu/cuda:0/growth/every", R"("10s")"},
        {"/gpu/cuda:0/growth/keep_free", R"("4GiB")"},
        {"/gpu/cuda:0/growth/wait", R"("0s")"},
        {"/gpu/cuda:0/cache/max", R"("1GiB")"},
        {"/gpu/cuda:0/cache/idle", R"("30s")"},
        {"/gpu/cuda:0/report", R"("device")"},
        {"/release/signal", R"("none")"},
        {"/release/steps", R"(["pools"])"},
        {"/release/idle", R"("10m")"},
        {"/release/before_growth", "false"},
        {"/release/collect", "true"},
        {"/frameworks/steer", "true"},
        {"/frameworks/env", R"({ "NAME": "value" })"},
        {"/log/level", R"("debug")"},
        {"/log/file", R"("curb-%p.log")"},
        {"/trace/file", R"("curb-%p.json")"},
    };
    for (const auto &[pointer, value] : expected) {
        INFO(pointer);
        CHECK(written[pointer] == value);
    }
}

TEST_CASE("A layer that says nothing has no settings") {
    CHECK(settings(Layer{}).empty());
    Layer layer;
    layer.gpu = {{key("*"), {}}};
    CHECK(settings(layer).empty());
}

TEST_CASE("Devices stand in the settings in the order of the layer, each under its key") {
    Layer layer;
    for (const char *key : {"GPU-8f3a", "*", "3B:00.0"}) layer.gpu.push_back(capped(key, "1GiB"));
    std::vector<std::string> pointers;
    for (const Setting &setting : settings(layer)) pointers.push_back(setting.pointer);
    CHECK(pointers == std::vector<std::string>{"/gpu/GPU-8f3a/cap", "/gpu/*/cap", "/gpu/0000:3b:00.0/cap"});
}

// ---- what differs ----

TEST_CASE("Equal layers do not differ") {
    CHECK(differences(whole(), whole()).empty());
    CHECK(differences({}, {}).empty());
}

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

TEST_CASE("A changed field is a difference from its old value to its new one") {
    Layer before = whole(), after = whole();
    after.gpu[0].policy.cap = size("4GiB");
    after.log.level = LogLevel::off;
    CHECK(differences(before, after) ==
          std::vector<std::string>{R"(/gpu/cuda:0/cap: "8GiB" -> "4GiB")", R"(/log/level: "debug" -> "off")"});
}

TEST_CASE("What went is told before what came, and devices are held against each other by key") {
    Layer before, after;
    before.gpu = {capped("*", "8GiB"), capped("cuda:0", "1GiB")};
    after.gpu = {capped("cuda:1", "2GiB"), capped("*", "8GiB")};
    after.release.idle = 10min;
    CHECK(differences(before, after) == std::vector<std::string>{R"(/gpu/cuda:0/cap: "1GiB" -> not set)",
                                                                 R"(/gpu/cuda:1/cap: not set -> "2GiB")",
                                                                 R"(/release/idle: not set -> "10m")"});
    after.gpu = {before.gpu[1], before.gpu[0]};  // their order says nothing
    after.release.idle.reset();
    CHECK(differences(before, after).empty());
}

// ---- values ----

TEST_CASE("A text is read back as it was, whatever is in it") {
    std::string every;
    for (int c = 0; c < 256; ++c) every += static_cast<char>(c);
    for (const std::string &text : {std::string(), std::string("a\"b\\c"), std::string("\\u0041"), every})
        CHECK(read_string(json_text(text)) == text);
    CHECK(json_text(std::string("a\nb\"")) == R"("a\u000ab\"")");
}

TEST_CASE("Sizes, durations and factors are read back as they were") {
    for (const char *text : {"0B", "1B", "8GiB", "12345B", "75%", "0.01%", "18446744073709551615B"})
        CHECK(*parse_size(read_string(json_text(*parse_size(text)))) == *parse_size(text));
    for (const Duration duration : {Duration(0), Duration(1), Duration(90'000), kLongest})
        CHECK(*parse_duration(read_string(json_text(duration))) == duration);
    for (const double factor : {1.01, 1.1, 1.5, 1.333333, 2.0, 10.000001, 100.0})
        CHECK(std::strtod(json_text(factor).c_str(), nullptr) == factor);
    CHECK(json_text(1.5) == "1.5");
    CHECK(json_text(2.0) == "2");
}

TEST_CASE("Names are read back as they were") {
    for (const char *signal : {"none", "SIGUSR1", "SIGHUP", "SIGRTMIN", "SIGRTMIN+3"})
        CHECK(read_string(json_text(*parse_signal(signal))) == signal);
    for (const Report report : {Report::cap, Report::device})
        CHECK(*parse_report(read_string(json_text(report))) == report);
    for (int level = 0; level <= static_cast<int>(LogLevel::off); ++level)
        CHECK(*parse_log_level(read_string(json_text(static_cast<LogLevel>(level)))) == static_cast<LogLevel>(level));
    CHECK(json_text(true) == "true");
    CHECK(json_text(false) == "false");
    CHECK(json_text(std::nullopt).empty());
}

TEST_CASE("Lists and environments are written as arrays and objects") {
    CHECK(json_text(std::vector<Step>{}) == "[]");
    CHECK(json_text(std::vector{Step::pools}) == R"(["pools"])");
    CHECK(json_text(std::vector{Step::frameworks, Step::pools}) == R"(["frameworks", "pools"])");
    CHECK(json_text(Environment{}) == "{}");
    CHECK(json_text(Environment{{"A", "1"}}) == R"({ "A": "1" })");
    CHECK(json_text(Environment{{"A", "a\"b"}, {"B", ""}}) == R"({ "A": "a\"b", "B": "" })");
}
