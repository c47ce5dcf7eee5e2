// The format, version 1. A process refuses members of a request that it does not know; a command ignores unknown
// members of a reply. So a new member needs a new version only if it is in a reply and must not be ignored.
//
//   {"curb":1,"ask":"status"}                 with "detail":true also the parts that take milliseconds
//   {"curb":1,"ask":"release","bytes":1073741824,"steps":["pools"]}      without bytes: all; steps: the policy's
//   {"curb":1,"ask":"cap","cap":"8GiB","gpu":"cuda:0"}                   without cap: the policy's again
//   {"curb":1,"ask":"gate","close_for":3000}                             without close_for: open
//   {"curb":1,"ask":"memory","handle":"6375…"}                           with "closed":7 instead: it is closed again
//
//   {"curb":1,"status":{"pid":4711,"version":"0.1.0",…}}                 each as described below
//   {"curb":1,"release":{"trigger":"curb release","steps":[{"step":"pools",…}],"milliseconds":…}}
//   {"curb":1,"cap":{"gpus":[…]}}
//   {"curb":1,"gate":{"closed":true,…}}
//   {"curb":1,"memory":{"opening":7}}                                    with a descriptor beside the first byte
//   {"curb":1,"failure":"…"}
#include "control/messages.hpp"

#include <optional>
#include <utility>

#include "json.hpp"
#include "members.hpp"

namespace curb::control {

constexpr int kVersion = 1;

using policy::quote;

// The members of each struct, for writing and reading.

template <class Io>
void describe(Io &io, Is<StepReport> auto &value) {
    io("step", value.step);
    io("freed", value.freed);
    io("milliseconds", value.milliseconds);
    io("reason", value.reason);
}
template <class Io>
void describe(Io &io, Is<ReleaseReport> auto &value) {
    io("trigger", value.trigger);
    io("steps", value.steps);
    io("milliseconds", value.milliseconds);
    io.where_set("returns_nothing", value.returns_nothing);
}
template <class Io>
void describe(Io &io, Is<GpuStatus> auto &value) {
    io("ordinal", value.ordinal);
    io("uuid", value.uuid);
    io.where_set("parent", value.parent);
    io("total", value.total);
    io.where_set("shares_host_memory", value.shares_host_memory);
    io("held", value.held);
    io("kinds", each_of<policy::Kind>(value.kinds));
    io("cached", value.cached);
    io("pools", value.pools);
    io("contexts", value.contexts);
    io("cap", value.cap);
    io("allowance", value.allowance);
    io("live_cap", value.live_cap);
    io.where_set("ceiling", value.ceiling);
    io.where_set("handed_in", value.handed_in);
    io.where_set("job_cap", value.job_cap);
    io.where_set("job_held", value.job_held);
    io("refused", each_of<policy::Limit>(value.refused));
    io("waited", value.waited);
    io.where_set("waiting", value.waiting);
    io("released", each_of<policy::Step>(value.released));
}
template <class Io>
void describe(Io &io, Is<PolicyStatus> auto &value) {
    io("file", value.file);
    io("cap", value.cap);
    io.where_set("flags", value.flags);
    io("ceiling", value.ceiling);
    io("rule", value.rule);
    io("unusable", value.unusable);
    io.where_known("since", value.since);
    io("error", value.error);
}
template <class Io>
void describe(Io &io, Is<TraceStatus> auto &value) {
    io("file", value.file);
    io("events", value.events);
    io("dropped", value.dropped);
    io("error", value.error);
}
template <class Io>
void describe(Io &io, Is<MoveStatus> auto &value) {
    io("bytes", value.bytes);
    io("out_ms", value.out_ms);
    io("back_ms", value.back_ms);
}
template <class Io>
void describe(Io &io, Is<NapStatus> auto &value) {
    io("out", value.out);
    io.where_known("since", value.since);
    io("count", value.count);
    io("bytes", value.bytes);
    io("waited_ms", value.waited_ms);
    io("refused", value.refused);
    io.where_set("bytes_total", value.bytes_total);
    io.where_set("waited_total_ms", value.waited_total_ms);
    io.where_set("no_room_since", value.no_room_since);
    io.where_set("leaving", value.leaving);
    io.where_set("is_light", value.is_light);
    io.where_set("light", value.light);
    io.where_set("zeros", value.zeros);
    io.where_set("deep", value.deep);
    io.where_set("light_total", value.light_total);
    io.where_set("zeros_total", value.zeros_total);
    io.where_set("stays", value.stays);
    io.where_set("not_light", value.not_light);
    io.where_set("kept", value.kept);
    io.where_set("stays_out", value.stays_out);
    io.where_set("illegal_address", value.illegal_address);
}
template <class Io>
void describe(Io &io, Is<Refusal> auto &value) {
    io("at", value.at);
    io("gpu", value.gpu);
    io.where_known("bytes", value.bytes);
    io.limit("why", "why_exactly", value.why);
    io("held", value.held);
    io.where_known("limit", value.limit);
}
template <class Io>
void describe(Io &io, Is<TurnStatus> auto &value) {
    io("length_ms", value.length_ms);
    io("since", value.since);
    io("count", value.count);
    io("moved_ms", value.moved_ms);
}
template <class Io>
void describe(Io &io, Is<Waiting> auto &value) {
    io("gpu", value.gpu);
    io("thread", value.thread);
    io("since", value.since);
    io("bytes", value.bytes);
    io.limit("why", "why_exactly", value.why);
    io("until", value.until);
    io("step", value.step);
}
template <class Io>
void describe(Io &io, Is<PastRelease> auto &value) {
    io("at", value.at);
    io("report", value.report);
}
template <class Io>
void describe(Io &io, Is<Bypass> auto &value) {
    io("library", value.library);
    io("how", value.how);
}
// Without its devices.
template <class Io>
void describe_process(Io &io, Is<Status> auto &value) {
    io("pid", value.pid);
    io("version", value.version);
    io.where_known("since", value.since);
    io("signal", value.signal);
    io.where_set("signal_trouble", value.signal_trouble);
    io("policy", value.policy);
    io.where_set("job", value.job);
    io("trace", value.trace);
    io("nap", value.nap);
    io("turn", value.turn);
    io.where_set("releasing", value.releasing);
    io.where_set("waits", value.waits);
    io("refusals", value.refusals);
    io("releases", value.releases);
    io.where_set("passed", value.bypasses);
    io.where_set("returns_nothing", value.returns_nothing);
}
template <class Io>
void describe(Io &io, Is<Status> auto &value) {
    describe_process(io, value);
    io("gpus", value.gpus);
}
template <class Io>
void describe(Io &io, Is<CapChange> auto &value) {
    io("ordinal", value.ordinal);
    io("uuid", value.uuid);
    io("before", value.before);
    io("now", value.now);
    io("live_cap", value.live_cap);
    io.where_set("ceiling", value.ceiling);
    io("held", value.held);
}
template <class Io>
void describe(Io &io, Is<CapReport> auto &value) {
    io("gpus", value.gpus);
}
template <class Io>
void describe(Io &io, Is<StatusRequest> auto &value) {
    io.where_set("detail", value.detail);
}
template <class Io>
void describe(Io &io, Is<policy::ReleaseRequest> auto &value) {
    io("bytes", value.wanted);
    io("steps", value.steps);
}
template <class Io>
void describe(Io &io, Is<CapRequest> auto &value) {
    io("cap", value.cap);
    io("gpu", value.gpu);
    io.where_set("job", value.job);
}
template <class Io>
void describe(Io &io, Is<GateRequest> auto &value) {
    io("close_for", value.close_for);
    io.where_set("nap", value.nap);
    io.where_set("stays", value.stays);
    io.where_set("moved", value.moved);
    io.where_set("took_ms", value.took_ms);
}
template <class Io>
void describe(Io &io, Is<GateReport> auto &value) {
    io("closed", value.closed);
    io.where_set("why", value.why);
    io.where_set("stays", value.stays);
    io.where_set("napped", value.napped);
    io.where_set("waits_for", value.waits_for);
    io.where_set("bypasses", value.bypasses);
}
template <class Io>
void describe(Io &io, Is<MemoryRequest> auto &value) {
    io("handle", value.handle);
    io.where_set("closed", value.closed);
}
template <class Io>
void describe(Io &io, Is<MemoryReport> auto &value) {
    io("opening", value.opening);
}

namespace {

const char *name_of(const StatusRequest & /*request*/) { return "status"; }
const char *name_of(const policy::ReleaseRequest & /*request*/) { return "release"; }
const char *name_of(const CapRequest & /*request*/) { return "cap"; }
const char *name_of(const GateRequest & /*request*/) { return "gate"; }
const char *name_of(const MemoryRequest & /*request*/) { return "memory"; }
const char *name_of(const Status & /*reply*/) { return "status"; }
const char *name_of(const ReleaseReport & /*reply*/) { return "release"; }
const char *name_of(const CapReport & /*reply*/) { return "cap"; }
const char *name_of(const GateReport & /*reply*/) { return "gate"; }
const char *name_of(const MemoryReport & /*reply*/) { return "memory"; }

// Returns the line as an object. Sets `fault` and returns nullopt if it is not JSON of our version.
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
    Reading(*json, fault)("curb", version);
    if (fault.empty() && version != kVersion)
        fault = "it is of version " + std::to_string(version) + ", and this curb speaks version " +
                std::to_string(kVersion) + ": use the same version on both sides";
    if (!fault.empty()) return std::nullopt;
    return std::move(json).value();
}

// Reads the request. Returns false if it is of another kind.
template <class One>
bool read_request(Reading &message, const std::string &ask, Request &out) {
    One one;
    if (ask != name_of(one)) return false;
    describe(message, one);
    message.nothing_more();
    out = std::move(one);
    return true;
}

// Reads the reply. Returns false if the message has no member of this kind.
template <class One>
bool read_reply(Reading &message, Reply &out) {
    One one;
    if (!message.has(name_of(one))) return false;
    message(name_of(one), one);
    out = std::move(one);
    return true;
}

template <class T>
std::string for_readers(const T &value) {
    Writing out(For::readers);
    describe(out, value);
    return std::move(out).text();
}

}  // namespace

std::string json_of(const Status &status) {
    Writing out(For::readers);
    describe_process(out, status);
    return std::move(out).text();
}
std::string json_of(const GpuStatus &gpu) { return for_readers(gpu); }
std::string json_of(const StepReport &step) { return for_readers(step); }
std::string json_of(const CapChange &change) { return for_readers(change); }

std::string text(const Request &request) {
    Writing message;
    message("curb", kVersion);
    std::visit(
        [&](const auto &one) {
            message("ask", std::string(name_of(one)));
            describe(message, one);
        },
        request);
    return std::move(message).text();
}

std::string text(const Reply &reply) {
    Writing message;
    message("curb", kVersion);
    std::visit(
        [&]<class One>(const One &one) {
            if constexpr (std::is_same_v<One, Failure>)
                message("failure", one.message);
            else
                message(name_of(one), one);
        },
        reply);
    return std::move(message).text();
}

policy::Result<Request, std::string> parse_request(std::string_view line) {
    std::string fault;
    const auto json = envelope(line, fault);
    if (!json) return "not a request to curb: " + fault;
    Reading message(*json, fault);
    std::string ask;
    int version = 0;
    message("curb", version);
    message("ask", ask);
    Request out;
    if (!(read_request<StatusRequest>(message, ask, out) || read_request<policy::ReleaseRequest>(message, ask, out) ||
          read_request<CapRequest>(message, ask, out) || read_request<GateRequest>(message, ask, out) ||
          read_request<MemoryRequest>(message, ask, out)))
        message.fail(quote(ask) + " cannot be asked of this version of curb");
    if (const auto *release = std::get_if<policy::ReleaseRequest>(&out);
        release && release->steps && release->steps->size() > kMostSteps)
        message.fail("\"steps\" has more of them than there are");
    if (!fault.empty()) return "not a request to curb: " + fault;
    return out;
}

policy::Result<Reply, std::string> parse_reply(std::string_view line) {
    std::string fault;
    const auto json = envelope(line, fault);
    if (!json) return "not an answer of curb: " + fault;
    Reading message(*json, fault);
    Reply out;
    if (message.has("failure")) {
        Failure failure;
        message("failure", failure.message);
        out = std::move(failure);
    } else if (!(read_reply<Status>(message, out) || read_reply<ReleaseReport>(message, out) ||
                 read_reply<CapReport>(message, out) || read_reply<GateReport>(message, out) ||
                 read_reply<MemoryReport>(message, out))) {
        fault = "it says nothing that this version of curb knows";
    }
    if (!fault.empty()) return "not an answer of curb: " + fault;
    return out;
}

}  // namespace curb::control
