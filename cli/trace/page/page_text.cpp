// The run in lines and as JSON, and the headings that all forms share.
#include <algorithm>
#include <array>
#include <span>

#include "page/pages.hpp"
#include "terminal/text_width.hpp"

namespace curb::cli {
namespace {

void add(std::string &out, const std::vector<std::string> &cells) {
    for (std::size_t i = 0; i < cells.size(); ++i) {
        constexpr std::size_t kWide = 12;
        out += "  " + cells[i];
        if (i + 1 < cells.size() && cells[i].size() < kWide) out.append(kWide - cells[i].size(), ' ');
    }
    out += '\n';
}

// Adds the stacks that hold the most at the peak, with the innermost calls of each.
void add_callers(std::string &out, const Recording &recording, const GpuSummary &gpu) {
    constexpr std::size_t kMostStacks = 5, kMostCalls = 8;
    for (std::size_t i = 0; i < std::min(kMostStacks, gpu.callers_at_peak.size()); ++i) {
        const Caller &one = gpu.callers_at_peak[i];
        add(out, {i == 0 ? "allocated by" : "", policy::format_human(one.bytes),
                  counted(one.count, "allocation") + (one.stack ? "" : ", not recorded")});
        if (!one.stack) continue;
        const auto calls = calls_of(recording.text(*one.stack));
        for (std::size_t call = 0; call < std::min(kMostCalls, calls.size()); ++call) add(out, {"", "", calls[call]});
        if (calls.size() > kMostCalls) add(out, {"", "", "and " + std::to_string(calls.size() - kMostCalls) + " more"});
    }
}

constexpr std::size_t kMostLines = 10;  // lines of one kind

void add_gpu(std::string &out, const Recording &recording, const GpuSummary &gpu) {
    out += "\n" + heading_of(gpu) + "\n";
    add(out, {"peak", policy::format_human(gpu.peak) + " at " + clock_text(recording, gpu.peak_ns)});
    for (std::size_t kind = 0; kind < policy::kKinds; ++kind)
        if (gpu.at_peak[kind] != 0)
            add(out, {"", policy::format_human(gpu.at_peak[kind]), policy::kind_text(static_cast<policy::Kind>(kind))});
    if (gpu.smallest_cap) add(out, {"smallest cap", served_by(gpu.paste)});
    add(out, {"allocations", std::to_string(gpu.allocations) + ", not freed before the end " +
                                 std::to_string(gpu.live) + " (" + policy::format_human(gpu.live_bytes) + ")"});
    for (std::size_t i = 0; i < std::min(kMostLines, gpu.refusals.size()); ++i) {
        const Moment &one = *gpu.refusals[i];
        add(out, {i == 0 ? "refused" : "", clock_text(recording, one.ns), control::size_text(one.bytes),
                  std::string(policy::kind_text(one.kind)) + ", for " + policy::limit_text(one.why())});
    }
    if (gpu.refusals.size() > kMostLines)
        add(out, {"", "and " + std::to_string(gpu.refusals.size() - kMostLines) + " more"});
    for (std::size_t i = 0; i < std::min<std::size_t>(5, gpu.held_at_peak.size()); ++i) {
        const Moment &one = *gpu.held_at_peak[i];
        add(out, {i == 0 ? "largest then" : "", control::size_text(one.bytes), clock_text(recording, one.ns),
                  policy::kind_text(one.kind)});
    }
    add_callers(out, recording, gpu);
}

// ---- JSON ----

using json::text_or_null;

template <class Values, class Text>
std::string some(const Values &values, Text text) {
    return json::list(std::span(values).first(std::min(values.size(), kMostListed)), text);
}

std::string refusal_json(const Moment *one) {
    return json::object({{"at_ns", one->ns},
                         {"bytes", one->bytes},
                         {"kind", json::text(policy::kind_name(one->kind))},
                         {"why", json::text(policy::limit_name(one->why()))},
                         {"held", one->held},
                         {"limit", one->limit_hit()}});
}

std::string summary_json(const Recording &recording, const GpuSummary &gpu) {
    std::array<std::size_t, policy::kLimits> by{};
    for (const Moment *one : gpu.refusals) ++by[static_cast<std::size_t>(one->why())];
    std::size_t granted = 0, refused = 0;
    std::uint64_t longest = 0;
    for (const Waited &wait : gpu.waits) {
        granted += wait.end == Waited::End::granted;
        refused += wait.end == Waited::End::refused;
        longest = std::max(longest, wait.ended_ns - wait.began_ns);
    }
    const auto with = [](const Moment *one, const char *name, json::Value value) {
        return json::object({{"bytes", one->bytes},
                             {"kind", json::text(policy::kind_name(one->kind))},
                             {"at_ns", one->ns},
                             {name, std::move(value)}});
    };
    const auto allocation = [=](const Moment *one) {
        return with(one, "pointer", json::text(pointer_text(one->pointer)));
    };
    const auto request = [=](const Moment *one) { return with(one, "refused", one->what == What::refuse); };
    const auto caller = [&](const Caller &one) {
        return json::object(
            {{"bytes", one.bytes},
             {"count", one.count},
             {"calls", one.stack ? json::list(calls_of(recording.text(*one.stack)), json::text) : "null"}});
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
                                   {"by", json::object_of<policy::Limit>(by, policy::limit_name)},
                                   {"first", some(gpu.refusals, refusal_json)}})},
         {"waited",
          json::object(
              {{"count", gpu.waits.size()}, {"granted", granted}, {"refused", refused}, {"longest_ns", longest}})},
         {"smallest_cap", gpu.smallest_cap},
         {"paste", text_or_null(gpu.paste)},
         {"largest_at_peak", some(gpu.held_at_peak, allocation)},
         {"callers_at_peak", some(gpu.callers_at_peak, caller)},
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

std::string absence_json(const Absence &absence) {
    return json::object({{"began_ns", absence.began_ns},
                         {"ended_ns", absence.ended_ns},
                         {"how", text_or_null(absence.how)},
                         {"bytes", absence.bytes},
                         {"out_ns", absence.out_ns == 0 ? "null" : std::to_string(absence.out_ns)},
                         {"wake_ns", absence.wake_ns ? std::to_string(*absence.wake_ns) : "null"}});
}

}  // namespace

std::string served_by(const std::string &paste) { return paste + ", as the only limit, would have served it"; }

std::string title_of(const Recording &recording) {
    return recording.header.command.empty() ? recording.name : recording.header.command;
}

std::string origin_of(const Recording &recording) {
    std::string out;
    const auto add_part = [&](const std::string &part) {
        if (!part.empty()) out += (out.empty() ? "" : ", ") + part;
    };
    add_part(recording.header.host);
    if (recording.header.pid != 0) add_part("pid " + std::to_string(recording.header.pid));
    if (const std::string date = date_text(recording); !date.empty()) add_part("begun " + date);
    add_part(span_text(recording.last_ns - recording.first_ns));
    add_part(counted(recording.events.size(), "event"));
    if (!recording.header.version.empty()) add_part("curb " + recording.header.version);
    return out;
}

const GpuSummary &summary_of(const Summary &summary, const Chart &chart) {
    return *std::find_if(summary.gpus.begin(), summary.gpus.end(),
                         [&](const GpuSummary &gpu) { return gpu.gpu == chart.gpu; });
}

std::string heading_of(const GpuSummary &gpu) {
    std::string out = gpu_name(gpu.gpu);
    if (!gpu.name.empty()) out += ", " + gpu.name;
    if (gpu.total != 0) out += ", " + policy::format_human(gpu.total);
    return out;
}

std::string text_report(const Recording &recording, const Summary &summary) {
    std::string out = title_of(recording) + "\n" + origin_of(recording) + "\n";
    for (const std::string &one : recording.missing) out += "missing: " + one + "\n";
    out += "\n";
    for (const std::string &one : sentences(recording, summary)) out += one + "\n";
    for (const GpuSummary &gpu : summary.gpus)
        if (is_used(gpu)) add_gpu(out, recording, gpu);
    for (std::size_t i = 0; i < std::min(kMostLines, summary.releases.size()); ++i) {
        const Release &one = summary.releases[i];
        if (i == 0) out += "\nreleased\n";
        add(out, {clock_text(recording, one.began_ns), control::size_text(one.bytes), one.trigger});
    }
    if (summary.releases.size() > kMostLines)
        add(out, {"and " + std::to_string(summary.releases.size() - kMostLines) + " more"});
    for (std::size_t i = 0; i < std::min(kMostLines, summary.absences.size()); ++i) {
        const Absence &one = summary.absences[i];
        if (i == 0) out += "\nout of its GPUs\n";
        add(out,
            {clock_text(recording, one.began_ns), policy::format_human(one.bytes),
             (one.how.empty() ? "" : "by " + cause_text(one) + ", ") + "for " + span_text(one.ended_ns - one.began_ns) +
                 (one.out_ns == 0 ? "" : ", the way out took " + span_text(one.out_ns)) + ", " +
                 (one.wake_ns ? way_back_text(one) : "and at the end")});
    }
    if (summary.absences.size() > kMostLines)
        add(out, {"and " + std::to_string(summary.absences.size() - kMostLines) + " more"});
    return out;
}

json::Members recording_json(const Recording &recording) {
    return {{"trace", json::text(recording.name)},
            {"pid", recording.header.pid == 0 ? "null" : std::to_string(recording.header.pid)},
            {"command", text_or_null(recording.header.command)},
            {"host", text_or_null(recording.header.host)},
            {"version", text_or_null(recording.header.version)},
            {"began_unix_ns", recording.header.unix_ns == 0 ? "null" : std::to_string(recording.header.unix_ns)},
            {"first_ns", recording.first_ns},
            {"last_ns", recording.last_ns},
            {"events", recording.events.size()},
            {"missing", some(recording.missing, json::text)}};
}

std::string report_json(const Recording &recording, const Summary &summary) {
    json::Members out = recording_json(recording);
    out.emplace_back("gpus", some(summary.gpus, [&](const GpuSummary &gpu) { return summary_json(recording, gpu); }));
    out.emplace_back("releases", some(summary.releases, release_json));
    out.emplace_back("absences", some(summary.absences, absence_json));
    return json::object(out);
}

}  // namespace curb::cli
