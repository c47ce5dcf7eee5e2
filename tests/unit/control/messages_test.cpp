// Requests and replies on the control socket, as text.
#include "control/messages.hpp"

#include <limits>

#include "catch.hpp"
#include "control/status.hpp"
#include "policy/values/size.hpp"
#include "spoilt.hpp"

using namespace curb;
using namespace curb::control;
using policy::ReleaseRequest;
using policy::Step;

namespace {

constexpr auto kMost = std::numeric_limits<std::uint64_t>::max();
constexpr auto kLeast = std::numeric_limits<std::int64_t>::min();

GpuStatus gpu(int ordinal, std::string uuid, policy::Bytes held) {
    GpuStatus out;
    out.ordinal = ordinal;
    out.uuid = std::move(uuid);
    out.held = held;
    return out;
}

Status nothing_set(int pid, std::string version, std::vector<GpuStatus> gpus) {
    Status out;
    out.pid = pid;
    out.version = std::move(version);
    out.gpus = std::move(gpus);
    return out;
}

Status everything_set() {
    GpuStatus one = gpu(63, "MIG-1", 1);
    one.parent = "GPU-2";
    one.total = kMost;
    one.kinds.fill(kMost);
    one.cached = 3;
    one.pools = {5, 4};
    one.contexts = -1;
    one.cap = 6;
    one.allowance = 7;
    one.live_cap = policy::Size{policy::Size::Unit::basis_points, 7550};
    one.ceiling = true;
    one.refused = {1, 2, 3, 4, 5};
    one.waited = 8;
    one.waiting = 2;
    one.released = {9, 10, 11, 12};
    Status out = nothing_set(1, "", {gpu(0, "GPU-c07b513d", kMost), one});
    out.since = 1'800'000'000'000;
    out.signal = "SIGUSR1";
    out.policy = {"/a/b.json", "8GiB", "/etc/curb/policy.json", "rule 2 \"bert\"", true, -1, "b.json:1:1: no"};
    out.trace = {"t.json", 1, 2, "disk full"};
    out.nap = {true,      3, 4,         5, 6, "no room",       7,      8, 9, true, true,
               {1, 2, 3}, 4, {5, 6, 7}, 8, 9, "2MiB of pools", "ranks"};
    out.releasing = true;
    out.waits = {{63, 4711, 1, 2, policy::Limit::allowance, 3, 4}, {0, 1, 0, kMost, policy::Limit::cap, 0, {}}};
    out.refusals = {{1, 63, 2, policy::Limit::keep_free, 3, 4}, {}};
    out.releases = {{5, {"curb release", {{Step::cache, 1, 2.5, "x"}}, 3, {"JAX"}}}};
    out.bypasses = {{"/lib/a.so", "how"}};
    out.returns_nothing = {"TensorFlow", "JAX"};
    return out;
}

const std::vector<Request> kRequests = {
    StatusRequest(),
    StatusRequest{true},
    CapRequest(),
    CapRequest{policy::Size{policy::Size::Unit::bytes, policy::GiB}, "cuda:0"},
    CapRequest{policy::Size{policy::Size::Unit::bytes, policy::GiB}, "*", true},
    GateRequest(),
    GateRequest{3000},
    GateRequest{std::nullopt, true},
    GateRequest{3000, true, true},
    GateRequest{3000, false, false, 4096},
    GateRequest{std::nullopt, false, false, 0, 5},
    MemoryRequest(),
    MemoryRequest{"00ff", kMost},
    ReleaseRequest(),
    ReleaseRequest{0, {}},
    ReleaseRequest{kMost, {{Step::frameworks, Step::pools}}},
    ReleaseRequest{{}, std::vector<Step>()},
};
const std::vector<Reply> kReplies = {
    Failure{"no \"such\" thing:\n\t\\ \x7F ä"},
    Failure{},
    nothing_set(4711, "0.1.0", {}),
    everything_set(),
    CapReport(),
    CapReport{
        {{0, "GPU-1", 1, 2, policy::Size{policy::Size::Unit::bytes, 2}, true, 3}, {1, "GPU-2", {}, {}, {}, false, 4}}},
    GateReport(),
    GateReport{false, true, "w", "s", "f", {{"l", "h"}}},
    MemoryReport{kMost},
    ReleaseReport{},
    ReleaseReport{"SIGUSR1", {{Step::pools, kLeast, 0.25, "graph capture"}, {Step::frameworks, 1, 1234.5, ""}}, 44.25},
    ReleaseReport{"", {}, 0, {"TensorFlow"}},
};

}  // namespace

TEST_CASE("Messages read back as written, from one line; cut off or with a byte changed they are read or refused") {
    for (const Request &request : kRequests) {
        const std::string line = text(request);
        CAPTURE(line);
        CHECK(line.find('\n') == std::string::npos);
        CHECK(line.size() < kLongestRequest);
        CHECK(parse_request(line).value() == request);
        check_spoilt(line, parse_request);
    }
    for (const Reply &reply : kReplies) {
        const std::string line = text(reply);
        CAPTURE(line);
        CHECK(line.find('\n') == std::string::npos);
        CHECK(parse_reply(line).value() == reply);
        check_spoilt(line, parse_reply);
    }
}

TEST_CASE("The format is as documented, so that other versions can read it") {
    CHECK(text(Request(StatusRequest())) == R"({"curb":1,"ask":"status"})");
    CHECK(text(Request(ReleaseRequest{policy::GiB, {{Step::pools}}})) ==
          R"({"curb":1,"ask":"release","bytes":1073741824,"steps":["pools"]})");
    CHECK(text(Reply(Failure{"no"})) == R"({"curb":1,"failure":"no"})");
    CHECK(text(Request(CapRequest{policy::Size{policy::Size::Unit::bytes, 8 * policy::GiB}, "*"})) ==
          R"({"curb":1,"ask":"cap","cap":"8GiB","gpu":"*"})");
    std::string released;
    for (const Step step : policy::all_steps())
        released += (released.empty() ? "\"" : ",\"") + std::string(policy::step_name(step)) + "\":0";
    CHECK(
        text(Reply(nothing_set(7, "0.1.0", {gpu(0, "GPU-1", 2)}))) ==
        R"({"curb":1,"status":{"pid":7,"version":"0.1.0","since":0,"signal":"","policy":{"file":"","cap":"","ceiling":"","rule":"","unusable":false,"since":0,"error":""},"refusals":[],"releases":[],"gpus":[{"ordinal":0,"uuid":"GPU-1","total":0,"held":2,"kinds":{"plain":0,"arrays":0,"pools":0,"graphs":0,"vmm":0,"managed":0,"contexts":0,"stack":0,"overhead":0},"cached":0,"pools":[],"contexts":0,"refused":{"cap":0,"allowance":0,"keep_free":0,"device":0,"job":0,"policy":0},"waited":0,"released":{)" +
            released + R"(}}]}})");
    CHECK(
        text(Reply(ReleaseReport{"curb release", {{Step::pools, -2, 1.5, "why"}}, 3})) ==
        R"({"curb":1,"release":{"trigger":"curb release","steps":[{"step":"pools","freed":-2,"milliseconds":1.5,"reason":"why"}],"milliseconds":3}})");
}

TEST_CASE("Bytes that are not UTF-8 and impossible times are written as values that can be read") {
    const auto written_and_read = [](const Reply &reply) { return parse_reply(text(reply)).value(); };
    CHECK(written_and_read(Failure{"a\xFF\xC3z"}) == Reply(Failure{"a\xEF\xBF\xBD\xEF\xBF\xBDz"}));
    using limits = std::numeric_limits<double>;
    for (const double time : {-1.0, limits::infinity(), limits::quiet_NaN()})
        CHECK(written_and_read(ReleaseReport{"x", {}, time}) == Reply(ReleaseReport{"x", {}, 0}));
    CHECK(text(Reply(ReleaseReport{"x", {}, 1e300})) == text(Reply(ReleaseReport{"x", {}, 4e9})));
    const auto of = [](const std::string &time) {
        return parse_reply(R"({"curb":1,"release":{"trigger":"x","steps":[],"milliseconds":)" + time + "}}");
    };
    CHECK(!of("4e9001"));
    for (const char *time : {"4000000001", "1e300", "18446744073709551615"})
        CHECK_THAT(error_of(of(time)), contains("\"milliseconds\" is more than any release takes"));
    for (const char *time : {"0", "0.000001", "1234567.891234", "3999999999.999999", "4000000000"})
        CHECK(written_and_read(of(time).value()) == of(time).value());
}

TEST_CASE("The error for a wrong request or reply says what is wrong") {
    const std::pair<std::string, const char *> requests[] = {
        {"", "not JSON"},
        {"{", "not JSON"},
        {std::string("{\0}", 3), "not JSON"},
        {"{\"curb\":1,\"ask\":\"\xFF\"}", "not JSON"},
        {R"({"curb":1,"ask":"status"} {})", "not JSON"},
        {R"({"curb":1,"ask":"status",})", "not JSON"},
        {R"({"curb":1,/**/"ask":"status"})", "not JSON"},
        {R"({"curb":1,"ask":"release","bytes":1e999})", "not JSON"},
        {std::string(100'000, '['), "nested too deeply"},
        {"[]", "not an object"},
        {R"({"ask":"status"})", "\"curb\" is not there"},
        {R"({"curb":"1","ask":"status"})", "\"curb\" is not a whole number"},
        {R"({"curb":1.0,"ask":"status"})", "\"curb\" is not a whole number"},
        {R"({"curb":99999999999,"ask":"status"})", "\"curb\" is not a whole number"},
        {R"({"curb":2,"ask":"status"})", "it is of version 2, and this curb speaks version 1"},
        {R"({"curb":1,"ask":1})", "\"ask\" is not a string"},
        {R"({"curb":1,"ask":"halt"})", "'halt' cannot be asked of this version"},
        {R"({"curb":1,"ask":"status","ask":"release"})", "the name \"ask\" stands in it twice"},
        {R"({"curb":1,"ask":"status","bytes":1})", "\"bytes\" is not known"},
        {R"({"curb":1,"ask":"status","detail":1})", "\"detail\" is neither true nor false"},
        {R"({"curb":1,"ask":"release","bytes":-1})", "\"bytes\" is not a whole number from 0"},
        {R"({"curb":1,"ask":"release","bytes":18446744073709551616})", "\"bytes\" is not a whole number"},
        {R"({"curb":1,"ask":"release","steps":"pools"})", "\"steps\" is not an array"},
        {R"({"curb":1,"ask":"release","steps":[1]})", "\"steps\" is not a string"},
        {R"({"curb":1,"ask":"release","steps":["pool"]})", "pools"},
        {R"({"curb":1,"ask":"cap","gpu":"*","cap":"8Gib"})", "8GiB"},
        {R"({"curb":1,"ask":"cap"})", "\"gpu\" is not there"},
    };
    for (const auto &[line, why] : requests)
        CHECK_THAT(error_of(parse_request(line)), contains("not a request to curb: ") && contains(why));
    const std::pair<std::string, const char *> replies[] = {
        {R"({"curb":1})", "nothing that this version of curb knows"},
        {R"({"curb":1,"failure":1})", "\"failure\" is not a string"},
        {R"({"curb":1,"status":[]})", "not an object"},
        {R"({"curb":1,"status":{"pid":1,"version":"x"}})", "\"since\" is not there"},
        {R"({"curb":1,"status":{"pid":2147483648,"version":"x","gpus":[]}})", "\"pid\" is not a whole number"},
        {R"({"curb":1,"cap":{"gpus":[1]}})", "not an object"},
        {R"({"curb":1,"release":{"trigger":1,"steps":[],"milliseconds":1}})", "\"trigger\" is not a string"},
        {R"({"curb":1,"release":{"trigger":"x","steps":[{}],"milliseconds":1}})", "\"step\" is not there"},
        {R"({"curb":1,"release":{"trigger":"x","steps":[],"milliseconds":-0.5}})", "is not a number from 0 on"},
        {R"({"curb":1,"release":{"trigger":"x","steps":[],"milliseconds":"1"}})", "is not a number from 0 on"},
    };
    for (const auto &[line, why] : replies)
        CHECK_THAT(error_of(parse_reply(line)), contains("not an answer of curb: ") && contains(why));
    CHECK_THAT(error_of(parse_reply(std::string(kLongestReply + 1, ' '))), contains("too long"));
    std::string many = R"({"curb":1,"ask":"release","steps":[)";
    for (std::size_t i = 0; i < kMostSteps; ++i) many += R"("pools",)";
    CHECK(!parse_request(many + R"("pools"]})"));
}

TEST_CASE("An older command ignores what a newer library adds to a reply") {
    std::string line = text(Reply(everything_set()));
    const std::pair<const char *, const char *> added[] = {{R"({"curb":1)", R"(,"more":{})"},
                                                           {R"("status":{)", R"("rules":[],)"},
                                                           {R"("gpus":[{)", R"("later":5,)"},
                                                           {R"("kinds":{)", R"("tensors":1,)"}};
    for (const auto &[before, more] : added) {
        REQUIRE(line.find(before) != std::string::npos);
        line.insert(line.find(before) + std::string(before).size(), more);
    }
    CHECK(parse_reply(line).value() == Reply(everything_set()));
}

TEST_CASE("A command of version 0.1, which knows no limit of a job, reads a status with one as a cap") {
    Status status = nothing_set(4711, "0.2.0", {});
    status.refusals.push_back({.why = curb::policy::Limit::job});
    const std::string line = text(Reply(status));
    CHECK_THAT(line, contains(R"("why":"cap","why_exactly":"job")"));
    CHECK(parse_reply(line).value() == Reply(status));
    std::string later = line;
    later.replace(later.find(R"("job","held")"), 5, R"("sun")");
    status.refusals.back().why = curb::policy::Limit::cap;
    CHECK(parse_reply(later).value() == Reply(status));
    CHECK_THAT(json_of(status), contains(R"("why":"cap")") && !contains("exactly"));
    status.refusals.back().why = curb::policy::Limit::job;
    CHECK_THAT(json_of(status), contains(R"("why":"job")") && !contains("exactly"));
}

TEST_CASE("json_of() writes every member, and null for unknown figures") {
    Status status;
    status.refusals.emplace_back();
    const std::string text = json_of(status);
    for (const char *member : {R"("since":null)", R"("signal":null)", R"("trace":null)", R"("releasing":false)",
                               R"("waits":[])", R"("bytes":null,"why":)", R"("held":0,"limit":null)"})
        CHECK_THAT(text, contains(member));
    CHECK_THAT(text, !contains("gpus"));
    // Times are in seconds too, for readers alone.
    CHECK_THAT(text, contains(R"("since":null,"since_unix_seconds":null)"));
    status.nap = NapStatus{.since = 1'500, .waited_ms = 250, .refused = {}};
    CHECK_THAT(json_of(status), contains(R"("since":1500,"since_unix_seconds":1.5)") &&
                                    contains(R"("waited_ms":250,"waited_seconds":0.25)"));
    status.turn = TurnStatus{.length_ms = 30'000, .moved_ms = 1'250};
    CHECK_THAT(json_of(status), contains(R"("length_ms":30000,"length_seconds":30)") &&
                                    contains(R"("moved_ms":1250,"moved_seconds":1.25)"));
    CHECK_THAT(curb::control::text(Reply(status)), contains(R"("waited_ms":250)") && !contains("seconds"));
    const GpuStatus full = everything_set().gpus.back();
    CHECK(refused(full) == 15);  // the sums
    CHECK(released(full) == 42);
    CHECK_THAT(json_of(GpuStatus()), contains(R"("cap":null,"allowance":null,"live_cap":null)"));
}
