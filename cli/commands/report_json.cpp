#include "report_json.hpp"

#include <algorithm>
#include <array>
#include <span>

namespace curb::cli {
namespace {

using json::text_or_null;

template <class Values, class Text>
std::string some(const Values &values, Text text) {
    return json::list(std::span(values).first(std::min(values.size(), kMostListed)), text);
}

std::string refusal_json(const Moment *one) {
    const bool limited = one->limit() != 0 && one->limit() != policy::kUnbounded;
    return json::object({{"at_ns", one->ns},
                         {"bytes", one->bytes},
                         {"kind", json::text(policy::kind_name(one->kind))},
                         {"why", json::text(policy::obstacle_name(one->why()))},
                         {"held", one->held},
                         {"limit", limited ? std::to_string(one->limit()) : "null"}});
}

std::string summary_json(const GpuSummary &gpu) {
    std::array<std::size_t, policy::kObstacles> by{};
    for (const Moment *one : gpu.refusals) ++by[static_cast<std::size_t>(one->why())];
    std::size_t granted = 0, refused = 0;
    std::uint64_t longest = 0;
    for (const Waited &wait : gpu.waits) {
        granted += wait.end == Waited::End::granted;
        refused += wait.end == Waited::End::refused;
        longest = std::max(longest, wait.ended_ns - wait.began_ns);
    }
    const auto allocation = [](const Moment *one) {
        return json::object({{"bytes", one->bytes},
                             {"kind", json::text(policy::kind_name(one->kind))},
                             {"at_ns", one->ns},
                             {"pointer", json::text(pointer_text(one->pointer))}});
    };
    const auto request = [](const Moment *one) {
        return json::object({{"bytes", one->bytes},
                             {"kind", json::text(policy::kind_name(one->kind))},
                             {"at_ns", one->ns},
                             {"refused", one->what == What::refuse}});
    };
    return json::object(
        {{"gpu", gpu.gpu},
         {"name", text_or_null(gpu.name)},
         {"uuid", text_or_null(gpu.uuid)},
         {"total", gpu.total == 0 ? "null" : std::to_string(gpu.total)},
         {"peak", json::object({{"bytes", gpu.peak},
                                {"at_ns", gpu.peak_ns},
                                {"by_kind", json::object_of<policy::Kind>(gpu.at_peak, policy::kind_name)},
                                {"cap", gpu.cap},
                                {"allowance", gpu.allowance}})},
         {"at_end", gpu.at_end},
         {"allocations", gpu.allocations},
         {"frees", gpu.frees},
         {"not_freed", json::object({{"count", gpu.live}, {"bytes", gpu.live_bytes}})},
         {"growth_steps", gpu.growth_steps},
         {"refused", json::object({{"count", gpu.refusals.size()},
                                   {"bytes", gpu.refused_bytes},
                                   {"by", json::object_of<policy::Obstacle>(by, policy::obstacle_name)},
                                   {"first", some(gpu.refusals, refusal_json)}})},
         {"waited",
          json::object(
              {{"count", gpu.waits.size()}, {"granted", granted}, {"refused", refused}, {"longest_ns", longest}})},
         {"largest_at_peak", some(gpu.held_at_peak, allocation)},
         {"largest_requests", some(gpu.requests, request)}});
}

std::string release_json(const Release &release) {
    return json::object(
        {{"began_ns", release.began_ns},
         {"ended_ns", release.ended_ns},
         {"trigger", json::text(release.trigger)},
         {"bytes", release.bytes},
         {"steps", some(release.steps, [](const auto &step) {
              return json::object({{"step", json::text(policy::step_name(step.first))}, {"bytes", step.second}});
          })}});
}

}  // namespace

json::Members recording_json(const Recording &recording) {
    return {{"trace", json::text(recording.name)},
            {"pid", recording.header.pid == 0 ? "null" : std::to_string(recording.header.pid)},
            {"command", text_or_null(recording.header.command)},
            {"version", text_or_null(recording.header.version)},
            {"began_unix_ns", recording.header.unix_ns == 0 ? "null" : std::to_string(recording.header.unix_ns)},
            {"first_ns", recording.first_ns},
            {"last_ns", recording.last_ns},
            {"events", recording.events.size()},
            {"missing", some(recording.missing, json::text)}};
}

std::string report_json(const Recording &recording, const Summary &summary) {
    json::Members out = recording_json(recording);
    out.emplace_back("gpus", some(summary.gpus, summary_json));
    out.emplace_back("releases", some(summary.releases, release_json));
    return json::object(out);
}

}  // namespace curb::cli
