#include <ctime>

#include "ps_text.hpp"
#include "text_width.hpp"

namespace curb::cli {
namespace {

// RFC 4180: a field with a comma or a quote in it stands in quotes, its own doubled.
std::string field(const std::string &raw) {
    const std::string text = plain(raw);
    if (text.find_first_of(",\"") == std::string::npos) return text;
    std::string out = "\"";
    for (const char c : text) out.append(c == '"' ? 2 : 1, c);
    return out + "\"";
}

std::string number_or_empty(const auto &value) { return value ? std::to_string(*value) : ""; }

std::string utc(control::UnixMs at) {
    const auto seconds = static_cast<time_t>(at / 1000);
    tm parts{};
    ::gmtime_r(&seconds, &parts);
    char text[32];
    return {text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

const char *state_of(const ViewProcess &process) {
    if (process.suspended) return "suspended";
    if (process.stopped) return "stopped";
    if (process.elsewhere) return "elsewhere";
    return process.under_curb && !process.status ? "silent" : "running";
}

// `gpu` and `use`: null, of a process on no device.
std::string row(const View &view, const ViewProcess &process, const ViewGpu *gpu, const ViewUse *use,
                control::UnixMs now) {
    std::string out;
    const auto add = [&](const std::string &text) { out += (out.empty() ? "" : ",") + field(text); };
    add(utc(now));
    add(gpu ? number_or_empty(gpu->index) : "");
    add(gpu ? gpu->uuid : "");
    add(gpu ? gpu->parent : "");
    add(std::to_string(process.pid));
    add(process.user);
    add(process.under_curb ? "yes" : "no");
    add(state_of(process));
    const control::GpuStatus *books = use ? books_of(view, *use) : nullptr;
    add(books ? std::to_string(books->held) : "");
    add(use ? number_or_empty(use->nvml) : "");
    add(books ? number_or_empty(books->cap) : "");
    add(books ? number_or_empty(books->allowance) : "");
    add(books ? std::to_string(books->cached) : "");
    add(books ? std::to_string(control::refused(*books)) : "");
    add(books ? std::to_string(control::released(*books)) : "");
    add(process.command);
    return out + "\r\n";
}

}  // namespace

std::string ps_csv_head() {
    return "time,gpu,uuid,parent,pid,user,under_curb,state,held_bytes,nvml_bytes,cap_bytes,allowance_bytes,"
           "cached_bytes,refused,released_bytes,command\r\n";
}

std::string ps_csv(const View &view, control::UnixMs now) {
    std::string out;
    std::vector<bool> placed(view.processes.size());
    for (const ViewGpu &gpu : view.gpus) {
        for (const ViewUse &use : gpu.uses) {
            out += row(view, view.processes[use.process], &gpu, &use, now);
            placed[use.process] = true;
        }
    }
    for (std::size_t i = 0; i < placed.size(); ++i)
        if (!placed[i]) out += row(view, view.processes[i], nullptr, nullptr, now);
    return out;
}

}  // namespace curb::cli
