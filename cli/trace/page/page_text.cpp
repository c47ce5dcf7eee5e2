// The run in lines, and the words that all pages begin with.

#include "pages.hpp"

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

}  // namespace

std::string title_of(const Recording &recording) {
    return recording.header.command.empty() ? recording.name : recording.header.command;
}

std::string origin_of(const Recording &recording) {
    std::string out;
    const auto add_part = [&](const std::string &part) {
        if (!part.empty()) out += (out.empty() ? "" : ", ") + part;
    };
    if (recording.header.pid != 0) add_part("pid " + std::to_string(recording.header.pid));
    if (const std::string date = date_text(recording); !date.empty()) add_part("begun " + date);
    add_part(span_text(recording.last_ns - recording.first_ns));
    add_part(std::to_string(recording.events.size()) + (recording.events.size() == 1 ? " event" : " events"));
    if (!recording.header.version.empty()) add_part("curb " + recording.header.version);
    return out;
}

std::string heading_of(const GpuSummary &gpu) {
    std::string out = gpu_name(gpu.gpu);
    if (!gpu.name.empty()) out += ", " + gpu.name;
    if (gpu.total != 0) out += ", " + policy::format_human(gpu.total);
    return out;
}

std::string text_report(const Recording &recording, const Summary &summary) {
    constexpr std::size_t kMost = 10;
    std::string out = title_of(recording) + "\n" + origin_of(recording) + "\n";
    for (const std::string &one : recording.missing) out += "missing: " + one + "\n";
    out += "\n";
    for (const std::string &one : sentences(recording, summary)) out += one + "\n";
    for (const GpuSummary &gpu : summary.gpus) {
        out += "\n" + heading_of(gpu) + "\n";
        add(out, {"peak", policy::format_human(gpu.peak) + " at " + clock_text(recording, gpu.peak_ns)});
        for (std::size_t kind = 0; kind < policy::kKinds; ++kind)
            if (gpu.at_peak[kind] != 0)
                add(out,
                    {"", policy::format_human(gpu.at_peak[kind]), policy::kind_text(static_cast<policy::Kind>(kind))});
        add(out, {"allocations", std::to_string(gpu.allocations) + ", not freed before the end " +
                                     std::to_string(gpu.live) + " (" + policy::format_human(gpu.live_bytes) + ")"});
        for (std::size_t i = 0; i < std::min(kMost, gpu.refusals.size()); ++i) {
            const Moment &one = *gpu.refusals[i];
            add(out, {i == 0 ? "refused" : "", clock_text(recording, one.ns), control::size_text(one.bytes),
                      std::string(policy::kind_text(one.kind)) + ", for " + policy::obstacle_text(one.why())});
        }
        if (gpu.refusals.size() > kMost) add(out, {"", "and " + std::to_string(gpu.refusals.size() - kMost) + " more"});
        for (std::size_t i = 0; i < std::min<std::size_t>(5, gpu.held_at_peak.size()); ++i) {
            const Moment &one = *gpu.held_at_peak[i];
            add(out, {i == 0 ? "largest then" : "", control::size_text(one.bytes), clock_text(recording, one.ns),
                      policy::kind_text(one.kind)});
        }
    }
    for (std::size_t i = 0; i < std::min(kMost, summary.releases.size()); ++i) {
        const Release &one = summary.releases[i];
        if (i == 0) out += "\nreleased\n";
        add(out, {clock_text(recording, one.began_ns), control::size_text(one.bytes), one.trigger});
    }
    if (summary.releases.size() > kMost) add(out, {"and " + std::to_string(summary.releases.size() - kMost) + " more"});
    return out;
}

}  // namespace curb::cli
