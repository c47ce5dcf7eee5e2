// The format, version 1. A member that a later version adds to a request needs a new version only if it must not be
// passed over; processes refuse what they do not know, whoever asks reads past it.
//
//   {"curb":1,"ask":"status"}
//   {"curb":1,"ask":"release","bytes":1073741824,"steps":["pools"]}      without bytes: all; without steps: the
//   policy's
//   {"curb":1,"status":{"pid":4711,"version":"0.1.0","gpus":[{"ordinal":0,"uuid":"GPU-…","held":…,"managed":…,"contexts":1}]}}
//   {"curb":1,"release":{"trigger":"curb
//   release","steps":[{"step":"pools","freed":…,"milliseconds":…,"reason":""}],"milliseconds":…}}
//   {"curb":1,"failure":"…"}
#include "control/messages.hpp"

#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <utility>

#include "json.hpp"
#include "policy/fields.hpp"
#include "policy/names.hpp"
#include "policy/words.hpp"

namespace curb::control {
namespace {

constexpr int kVersion = 1;

using policy::quote;

// Writing.

std::string text_of(std::string_view value) { return policy::json_text(policy::valid_utf8(value)); }
template <class Number>
requires std::is_integral_v<Number> std::string text_of(Number value) { return std::to_string(value); }
std::string text_of(double milliseconds) {
    return policy::json_text(std::isfinite(milliseconds) && milliseconds > 0 ? milliseconds : 0.0);
}
template <class Values, class Text>
std::string list_of(const Values &values, Text text) {
    std::string out;
    for (const auto &value : values) out += (out.empty() ? "" : ",") + text(value);
    return "[" + out + "]";
}
std::string message(const std::string &members) {
    return "{\"curb\":" + std::to_string(kVersion) + "," + members + "}";
}

std::string text_of(policy::Step step) { return text_of(std::string_view(policy::step_name(step))); }

std::string text_of(const GpuStatus &gpu) {
    return "{\"ordinal\":" + text_of(gpu.ordinal) + ",\"uuid\":" + text_of(gpu.uuid) +
           ",\"held\":" + text_of(gpu.held) + ",\"managed\":" + text_of(gpu.managed) +
           ",\"contexts\":" + text_of(gpu.contexts) + "}";
}
std::string text_of(const StepReport &step) {
    return "{\"step\":" + text_of(step.step) + ",\"freed\":" + text_of(step.freed) +
           ",\"milliseconds\":" + text_of(step.milliseconds) + ",\"reason\":" + text_of(step.reason) + "}";
}

struct Writer {
    std::string operator()(const StatusRequest & /*request*/) const { return message(R"("ask":"status")"); }
    std::string operator()(const policy::ReleaseRequest &request) const {
        std::string out = R"("ask":"release")";
        if (request.wanted) out += ",\"bytes\":" + text_of(*request.wanted);
        if (request.steps)
            out += ",\"steps\":" + list_of(*request.steps, [](policy::Step one) { return text_of(one); });
        return message(out);
    }
    std::string operator()(const Failure &failure) const { return message("\"failure\":" + text_of(failure.message)); }
    std::string operator()(const Status &status) const {
        return message("\"status\":{\"pid\":" + text_of(status.pid) + ",\"version\":" + text_of(status.version) +
                       ",\"gpus\":" + list_of(status.gpus, [](const GpuStatus &gpu) { return text_of(gpu); }) + "}");
    }
    std::string operator()(const ReleaseReport &report) const {
        return message("\"release\":{\"trigger\":" + text_of(report.trigger) +
                       ",\"steps\":" + list_of(report.steps, [](const StepReport &step) { return text_of(step); }) +
                       ",\"milliseconds\":" + text_of(report.milliseconds) + "}");
    }
};

// Reading. One fault is enough: the first.

class Members {
  public:
    Members(const Json &object, std::string &fault) : object_(object), fault_(fault) {
        if (!object.get<Json::Object>()) fail("it is not an object");
    }

    [[nodiscard]] bool has(std::string_view name) const { return object_.member(name) != nullptr; }

    // The member `name` into `out`. A member that is not there, or of another kind or range, is a fault.
    void read(const char *name, std::string &out) {
        const Json *value = needed(name);
        if (value == nullptr) return;
        if (const auto *text = value->get<std::string>())
            out = *text;
        else
            fail(name, "is not a string");
    }
    template <class Number>
    requires std::is_integral_v<Number>
    void read(const char *name, Number &out) {
        const Json *value = needed(name);
        if (value == nullptr) return;
        const auto *positive = value->get<std::uint64_t>();
        const auto *negative = value->get<std::int64_t>();
        if (positive != nullptr && std::in_range<Number>(*positive))
            out = static_cast<Number>(*positive);
        else if (negative != nullptr && std::in_range<Number>(*negative))
            out = static_cast<Number>(*negative);
        else
            fail(name, "is not a whole number from " + std::to_string(std::numeric_limits<Number>::min()) + " to " +
                           std::to_string(std::numeric_limits<Number>::max()));
    }
    void read(const char *name, double &out) {
        const Json *value = needed(name);
        if (value == nullptr) return;
        const auto *number = value->get<double>();
        const auto *whole = value->get<std::uint64_t>();
        if (whole != nullptr)
            out = static_cast<double>(*whole);
        else if (number != nullptr && *number >= 0)
            out = *number;
        else
            fail(name, "is not a number from 0 on");
    }
    void read(const char *name, policy::Step &out) {
        std::string text;
        read(name, text);
        set(out, text);
    }
    // Each element of an array.
    template <class Element>
    void each(const char *name, Element element) {
        const Json *value = needed(name);
        if (value == nullptr) return;
        const auto *array = value->get<Json::Array>();
        if (array == nullptr) return fail(name, "is not an array");
        for (const Json &one : *array)
            if (fault_.empty()) element(one);
    }
    void step(const Json &value, policy::Step &out) {
        const auto *text = value.get<std::string>();
        if (text == nullptr) return fail("a step is not a string");
        set(out, *text);
    }
    // Whatever else stands in the object is a fault.
    void nothing_but(std::span<const std::string_view> known) {
        const auto *members = object_.get<Json::Object>();
        if (members == nullptr || !fault_.empty()) return;
        for (const auto &[name, value] : *members)
            if (std::find(known.begin(), known.end(), name) == known.end())
                return fail(quote(name, '"') + " is not known to this version of curb");
    }
    void fail(std::string what) {
        if (fault_.empty()) fault_ = std::move(what);
    }

  private:
    const Json *needed(const char *name) {
        if (!fault_.empty()) return nullptr;
        const Json *value = object_.member(name);
        if (value == nullptr) fail(name, "is not there");
        return value;
    }
    void fail(const char *name, const std::string &what) { fail('"' + std::string(name) + "\" " + what); }
    void set(policy::Step &out, const std::string &name) {
        if (!fault_.empty()) return;
        if (const auto step = policy::parse_step(name))
            out = *step;
        else
            fail(step.error());
    }

    const Json &object_;
    std::string &fault_;
};

// The line as an object of our version.
std::optional<Json> envelope(std::string_view line, std::string &fault) {
    if (line.size() > kLongestReply) {
        fault = "it is too long";
        return std::nullopt;
    }
    auto json = parse_json(line);
    if (!json) {
        fault = json.error();
        return std::nullopt;
    }
    int version = 0;
    Members(*json, fault).read("curb", version);
    if (fault.empty() && version != kVersion)
        fault = "it is of version " + std::to_string(version) + ", and this curb speaks version " +
                std::to_string(kVersion) + ": use the same version on both sides";
    if (!fault.empty()) return std::nullopt;
    return std::move(json).value();
}

policy::ReleaseRequest release_request(Members &message) {
    policy::ReleaseRequest out;
    if (message.has("bytes")) message.read("bytes", out.wanted.emplace());
    if (message.has("steps")) {
        out.steps.emplace();
        message.each("steps", [&](const Json &step) { message.step(step, out.steps->emplace_back()); });
        if (out.steps->size() > kMostSteps) message.fail("\"steps\" has more of them than there are");
    }
    return out;
}

Status status(const Json &value, std::string &fault) {
    Status out;
    Members members(value, fault);
    members.read("pid", out.pid);
    members.read("version", out.version);
    members.each("gpus", [&](const Json &one) {
        GpuStatus &gpu = out.gpus.emplace_back();
        Members gpus(one, fault);
        gpus.read("ordinal", gpu.ordinal);
        gpus.read("uuid", gpu.uuid);
        gpus.read("held", gpu.held);
        gpus.read("managed", gpu.managed);
        gpus.read("contexts", gpu.contexts);
    });
    return out;
}

ReleaseReport release_report(const Json &value, std::string &fault) {
    ReleaseReport out;
    Members members(value, fault);
    members.read("trigger", out.trigger);
    members.read("milliseconds", out.milliseconds);
    members.each("steps", [&](const Json &one) {
        StepReport &step = out.steps.emplace_back();
        Members steps(one, fault);
        steps.read("step", step.step);
        steps.read("freed", step.freed);
        steps.read("milliseconds", step.milliseconds);
        steps.read("reason", step.reason);
    });
    return out;
}

}  // namespace

std::string text(const Request &request) { return std::visit(Writer(), request); }
std::string text(const Reply &reply) { return std::visit(Writer(), reply); }

policy::Result<Request, std::string> parse_request(std::string_view line) {
    std::string fault;
    const auto json = envelope(line, fault);
    if (!json) return "not a request to curb: " + fault;
    Members message(*json, fault);
    std::string ask;
    message.read("ask", ask);
    Request out;
    if (ask == "status") {
        constexpr std::string_view kKnown[] = {"curb", "ask"};
        message.nothing_but(kKnown);
    } else if (ask == "release") {
        constexpr std::string_view kKnown[] = {"curb", "ask", "bytes", "steps"};
        message.nothing_but(kKnown);
        out = release_request(message);
    } else {
        message.fail(quote(ask) + " cannot be asked of this version of curb");
    }
    if (!fault.empty()) return "not a request to curb: " + fault;
    return out;
}

policy::Result<Reply, std::string> parse_reply(std::string_view line) {
    std::string fault;
    const auto json = envelope(line, fault);
    if (!json) return "not an answer of curb: " + fault;
    Members message(*json, fault);
    Reply out;
    if (message.has("failure")) {
        Failure failure;
        message.read("failure", failure.message);
        out = std::move(failure);
    } else if (const Json *value = json->member("status")) {
        out = status(*value, fault);
    } else if (const Json *report = json->member("release")) {
        out = release_report(*report, fault);
    } else {
        fault = "it says nothing that this version of curb knows";
    }
    if (!fault.empty()) return "not an answer of curb: " + fault;
    return out;
}

}  // namespace curb::control
