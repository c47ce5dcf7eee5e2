#include "control/messages.hpp"

#include <limits>

#include "catch.hpp"
#include "policy/size.hpp"

using namespace curb;
using control::Failure;
using control::parse_reply;
using control::parse_request;
using control::ReleaseReport;
using control::Reply;
using control::Request;
using control::Status;
using control::StatusRequest;
using control::text;
using policy::ReleaseRequest;
using policy::Step;

namespace {

constexpr auto kMost = std::numeric_limits<std::uint64_t>::max();
constexpr auto kLeast = std::numeric_limits<std::int64_t>::min();

const std::vector<Request> kRequests = {
    StatusRequest(),
    ReleaseRequest(),
    ReleaseRequest{0, {}},
    ReleaseRequest{kMost, {{Step::frameworks, Step::pools}}},
    ReleaseRequest{{}, std::vector<Step>()},
};
const std::vector<Reply> kReplies = {
    Failure{"no \"such\" thing:\n\t\\ \x7F ä"},
    Failure{},
    Status{4711, "0.1.0", {}},
    Status{1, "", {{0, "GPU-c07b513d", kMost, 0, 1}, {63, "MIG-1", 0, kMost, 0}}},
    ReleaseReport{},
    ReleaseReport{"SIGUSR1", {{Step::pools, kLeast, 0.25, "graph capture"}, {Step::frameworks, 1, 1234.5, ""}}, 44.25},
};

}  // namespace

TEST_CASE("What is written is read as the same, on one line") {
    for (const Request &request : kRequests) {
        const std::string line = text(request);
        CAPTURE(line);
        CHECK(line.find('\n') == std::string::npos);
        CHECK(line.size() < control::kLongestRequest);
        const auto read = parse_request(line);
        REQUIRE(read);
        CHECK(*read == request);
    }
    for (const Reply &reply : kReplies) {
        const std::string line = text(reply);
        CAPTURE(line);
        CHECK(line.find('\n') == std::string::npos);
        const auto read = parse_reply(line);
        REQUIRE(read);
        CHECK(*read == reply);
    }
}

TEST_CASE("The format is as documented, so that other versions can read it") {
    CHECK(text(Request(StatusRequest())) == R"({"curb":1,"ask":"status"})");
    CHECK(text(Request(ReleaseRequest{policy::GiB, {{Step::pools}}})) ==
          R"({"curb":1,"ask":"release","bytes":1073741824,"steps":["pools"]})");
    CHECK(text(Reply(Failure{"no"})) == R"({"curb":1,"failure":"no"})");
    CHECK(
        text(Reply(Status{7, "0.1.0", {{0, "GPU-1", 2, 1, 1}}})) ==
        R"({"curb":1,"status":{"pid":7,"version":"0.1.0","gpus":[{"ordinal":0,"uuid":"GPU-1","held":2,"managed":1,"contexts":1}]}})");
    CHECK(
        text(Reply(ReleaseReport{"curb release", {{Step::pools, -2, 1.5, "why"}}, 3})) ==
        R"({"curb":1,"release":{"trigger":"curb release","steps":[{"step":"pools","freed":-2,"milliseconds":1.5,"reason":"why"}],"milliseconds":3}})");
}

TEST_CASE("Bytes that are not UTF-8 do not make a line that is no JSON") {
    const auto read = parse_reply(text(Reply(Failure{"a\xFF\xC3z"})));
    REQUIRE(read);
    CHECK(*read == Reply(Failure{"a\xEF\xBF\xBD\xEF\xBF\xBDz"}));
}

TEST_CASE("Impossible times are written as none") {
    for (const double time :
         {-1.0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
        const auto read = parse_reply(text(Reply(ReleaseReport{"x", {}, time})));
        REQUIRE(read);
        CHECK(*read == Reply(ReleaseReport{"x", {}, 0}));
    }
}

TEST_CASE("A request that is not right is refused, with what is wrong") {
    struct Bad {
        std::string line;
        const char *why;
    };
    const std::vector<Bad> bad = {
        {"", "not JSON"},
        {"{", "not JSON"},
        {"status", "not JSON"},
        {std::string("{\0}", 3), "not JSON"},
        {"{\"curb\":1,\"ask\":\"\xFF\"}", "not JSON"},
        {R"({"curb":1,"ask":"status"} {})", "not JSON"},
        {R"({"curb":1,"ask":"status",})", "not JSON"},
        {R"({"curb":1,/**/"ask":"status"})", "not JSON"},
        {R"({"curb":1,"ask":"release","bytes":1e999})", "not JSON"},
        {std::string(100'000, '['), "nested too deeply"},
        {"[]", "not an object"},
        {"null", "not an object"},
        {"1", "not an object"},
        {R"({"ask":"status"})", "\"curb\" is not there"},
        {R"({"curb":"1","ask":"status"})", "\"curb\" is not a whole number"},
        {R"({"curb":1.0,"ask":"status"})", "\"curb\" is not a whole number"},
        {R"({"curb":99999999999,"ask":"status"})", "\"curb\" is not a whole number"},
        {R"({"curb":2,"ask":"status"})", "it is of version 2, and this curb speaks version 1"},
        {R"({"curb":1})", "\"ask\" is not there"},
        {R"({"curb":1,"ask":1})", "\"ask\" is not a string"},
        {R"({"curb":1,"ask":"halt"})", "'halt' cannot be asked of this version"},
        {R"({"curb":1,"ask":"status","ask":"release"})", "the name \"ask\" stands in it twice"},
        {R"({"curb":1,"ask":"status","bytes":1})", "\"bytes\" is not known"},
        {R"({"curb":1,"ask":"release","byte":1})", "\"byte\" is not known"},
        {R"({"curb":1,"ask":"release","bytes":-1})", "\"bytes\" is not a whole number from 0"},
        {R"({"curb":1,"ask":"release","bytes":1.5})", "\"bytes\" is not a whole number"},
        {R"({"curb":1,"ask":"release","bytes":"1GiB"})", "\"bytes\" is not a whole number"},
        {R"({"curb":1,"ask":"release","bytes":18446744073709551616})", "\"bytes\" is not a whole number"},
        {R"({"curb":1,"ask":"release","bytes":null})", "\"bytes\" is not a whole number"},
        {R"({"curb":1,"ask":"release","steps":"pools"})", "\"steps\" is not an array"},
        {R"({"curb":1,"ask":"release","steps":[1]})", "a step is not a string"},
        {R"({"curb":1,"ask":"release","steps":["pool"]})", "pools"},
    };
    for (const Bad &one : bad) {
        CAPTURE(one.line.substr(0, 100));
        const auto read = parse_request(one.line);
        REQUIRE(!read);
        CHECK_THAT(read.error(), contains("not a request to curb: ") && contains(one.why));
    }
    std::string many = R"({"curb":1,"ask":"release","steps":[)";
    for (std::size_t i = 0; i < control::kMostSteps; ++i) many += R"("pools",)";
    CHECK(!parse_request(many + R"("pools"]})"));
}

TEST_CASE("A reply that is not right is refused, with what is wrong") {
    struct Bad {
        const char *line;
        const char *why;
    };
    for (const Bad &one : std::vector<Bad>{
             {R"({"curb":1})", "nothing that this version of curb knows"},
             {R"({"curb":1,"failure":1})", "\"failure\" is not a string"},
             {R"({"curb":1,"status":[]})", "not an object"},
             {R"({"curb":1,"status":{"pid":1,"version":"x"}})", "\"gpus\" is not there"},
             {R"({"curb":1,"status":{"pid":2147483648,"version":"x","gpus":[]}})", "\"pid\" is not a whole number"},
             {R"({"curb":1,"status":{"pid":1,"version":"x","gpus":[1]}})", "not an object"},
             {R"({"curb":1,"release":{"trigger":"x","steps":[{}],"milliseconds":1}})", "\"step\" is not there"},
             {R"({"curb":1,"release":{"trigger":"x","steps":[],"milliseconds":-1}})",
              "\"milliseconds\" is not a number from 0 on"},
             {R"({"curb":1,"release":{"trigger":"x","steps":[],"milliseconds":-0.5}})", "is not a number from 0 on"},
             {R"({"curb":1,"release":{"trigger":"x","steps":[],"milliseconds":"1"}})", "is not a number from 0 on"},
         }) {
        CAPTURE(one.line);
        const auto read = parse_reply(one.line);
        REQUIRE(!read);
        CHECK_THAT(read.error(), contains("not an answer of curb: ") && contains(one.why));
    }
    CHECK_THAT(parse_reply(std::string(control::kLongestReply + 1, ' ')).error(), contains("too long"));
}

TEST_CASE("An older command reads past what a newer library adds to a reply") {
    const auto read = parse_reply(
        R"({"curb":1,"more":{},"status":{"pid":7,"version":"9","gpus":[{"ordinal":0,"uuid":"u","held":1,"managed":0,"contexts":1,"cap":5}],"rules":[]}})");
    REQUIRE(read);
    CHECK(*read == Reply(Status{7, "9", {{0, "u", 1, 0, 1}}}));
}

TEST_CASE("Every beginning of a line, and every line with one byte changed, is read or refused") {
    const auto try_all = [](const std::string &line, auto parse) {
        for (std::size_t length = 0; length < line.size(); ++length) CHECK(!parse(line.substr(0, length)));
        for (std::size_t i = 0; i < line.size(); ++i) {
            for (const char c : {'\0', '"', '{', '}', '9', '-', ',', '\x80', '\n'}) {
                std::string changed = line;
                changed[i] = c;
                const auto read = parse(changed);
                if (!read) CHECK(!read.error().empty());
            }
        }
    };
    for (const Request &request : kRequests) try_all(text(request), parse_request);
    for (const Reply &reply : kReplies) try_all(text(reply), parse_reply);
}
