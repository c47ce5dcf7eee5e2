#include "json.hpp"
#include "policy/fields.hpp"
#include "policy/names.hpp"
#include "policy/size.hpp"
#include "ps_text.hpp"

namespace curb::cli {
namespace {

using json::flag;
using json::list;
using json::number_or_null;
using json::object;
using json::object_of;
using json::text;
using json::text_or_null;
using std::to_string;

std::string time_or_null(control::UnixMs at) { return at == 0 ? "null" : to_string(at); }

std::string books_json(const control::GpuStatus &books) {
    return object({{"ordinal", to_string(books.ordinal)},
                   {"held", to_string(books.held)},
                   {"kinds", object_of<policy::Kind>(books.kinds, policy::kind_name)},
                   {"cached", to_string(books.cached)},
                   {"pools", list(books.pools, [](policy::Bytes one) { return to_string(one); })},
                   {"contexts", to_string(books.contexts)},
                   {"cap", number_or_null(books.cap)},
                   {"allowance", number_or_null(books.allowance)},
                   {"live_cap", books.live_cap ? text(policy::format(*books.live_cap)) : "null"},
                   {"ceiling", flag(books.ceiling)},
                   {"refused", object_of<policy::Obstacle>(books.refused, policy::obstacle_name)},
                   {"waited", to_string(books.waited)},
                   {"waiting", to_string(books.waiting)},
                   {"released", object_of<policy::Step>(books.released, policy::step_name)}});
}

std::string use_json(const View &view, const ViewUse &use) {
    const control::GpuStatus *books = books_of(view, use);
    return object({{"pid", to_string(view.processes[use.process].pid)},
                   {"nvml", number_or_null(use.nvml)},
                   {"books", books ? books_json(*books) : "null"}});
}

std::string gpu_json(const View &view, const ViewGpu &gpu) {
    return object({{"index", number_or_null(gpu.index)},
                   {"uuid", text(gpu.uuid)},
                   {"parent", text_or_null(gpu.parent)},
                   {"name", text_or_null(gpu.name)},
                   {"mig", flag(gpu.mig)},
                   {"total", to_string(gpu.total)},
                   {"used", number_or_null(gpu.used)},
                   {"free", number_or_null(gpu.free)},
                   {"uses", list(gpu.uses, [&](const ViewUse &use) { return use_json(view, use); })}});
}

std::string refusal_json(const control::Refusal &one) {
    return object({{"at", to_string(one.at)},
                   {"gpu", to_string(one.gpu)},
                   {"bytes", one.bytes == 0 ? "null" : to_string(one.bytes)},
                   {"why", text(policy::obstacle_name(one.why))},
                   {"held", to_string(one.held)},
                   {"limit", one.limit == 0 ? "null" : to_string(one.limit)}});
}

std::string wait_json(const control::Waiting &one) {
    return object({{"gpu", to_string(one.gpu)},
                   {"thread", to_string(one.thread)},
                   {"since", to_string(one.since)},
                   {"bytes", to_string(one.bytes)},
                   {"why", text(policy::obstacle_name(one.why))},
                   {"until", to_string(one.until)},
                   {"step", one.step ? to_string(*one.step) : "null"}});
}

std::string release_json(const control::PastRelease &one) {
    const auto step = [](const control::StepReport &report) {
        return object({{"step", text(policy::step_name(report.step))},
                       {"freed", to_string(report.freed)},
                       {"milliseconds", policy::json_text(report.milliseconds)},
                       {"reason", text(report.reason)}});
    };
    return object({{"at", to_string(one.at)},
                   {"trigger", text(one.report.trigger)},
                   {"freed", to_string(control::freed(one.report))},
                   {"milliseconds", policy::json_text(one.report.milliseconds)},
                   {"steps", list(one.report.steps, step)}});
}

std::string policy_json(const control::PolicyStatus &policy) {
    return object({{"file", text_or_null(policy.file)},
                   {"rule", text_or_null(policy.rule)},
                   {"curb_cap", text_or_null(policy.cap)},
                   {"ceiling", text_or_null(policy.ceiling)},
                   {"since", time_or_null(policy.since)},
                   {"unusable", flag(policy.unusable)},
                   {"error", text_or_null(policy.error)}});
}

std::string trace_json(const control::TraceStatus &trace) {
    return object({{"file", text(trace.file)},
                   {"events", to_string(trace.events)},
                   {"dropped", to_string(trace.dropped)},
                   {"error", text_or_null(trace.error)}});
}

// The part of a status that is not about one device. The figures of devices stand with the uses.
std::string status_json(const control::Status &status) {
    return object({{"version", text(status.version)},
                   {"since", time_or_null(status.since)},
                   {"signal", text_or_null(status.signal)},
                   {"signal_trouble", text_or_null(status.signal_trouble)},
                   {"policy", policy_json(status.policy)},
                   {"trace", status.trace ? trace_json(*status.trace) : "null"},
                   {"releasing", flag(status.releasing)},
                   {"waits", list(status.waits, wait_json)},
                   {"refusals", list(status.refusals, refusal_json)},
                   {"releases", list(status.releases, release_json)},
                   {"passed", list(status.passed,
                                   [](const control::Passed &one) {
                                       return object({{"library", text(one.library)}, {"how", text(one.how)}});
                                   })},
                   {"returns_nothing", list(status.returns_nothing, text)}});
}

std::string process_json(const ViewProcess &process) {
    return object({{"pid", to_string(process.pid)},
                   {"user", text_or_null(process.user)},
                   {"name", text_or_null(process.name)},
                   {"command", text_or_null(process.command)},
                   {"under_curb", flag(process.under_curb)},
                   {"stopped", flag(process.stopped)},
                   {"suspended", flag(process.suspended)},
                   {"elsewhere", flag(process.elsewhere)},
                   {"trouble", text_or_null(process.trouble)},
                   {"status", process.status ? status_json(*process.status) : "null"}});
}

}  // namespace

std::string ps_json(const View &view, const std::vector<PsError> &errors, control::UnixMs now) {
    const auto error = [](const PsError &one) {
        return object({{"pid", to_string(one.pid)}, {"message", text(one.message)}});
    };
    return object({{"time", to_string(now)},
                   {"nvml_fault", text_or_null(view.nvml_fault)},
                   {"gpus", list(view.gpus, [&](const ViewGpu &gpu) { return gpu_json(view, gpu); })},
                   {"processes", list(view.processes, process_json)},
                   {"errors", list(errors, error)}});
}

}  // namespace curb::cli
