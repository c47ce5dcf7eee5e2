// The words that the table, the notes and the details share.
#include "ps_text.hpp"

#include <algorithm>
#include <array>
#include <ctime>

#include "policy/size.hpp"
#include "text_width.hpp"

namespace curb::cli {
namespace {

tm local(control::UnixMs at) {
    const auto seconds = static_cast<time_t>(at / 1000);
    tm out{};
    ::localtime_r(&seconds, &out);
    return out;
}

}  // namespace

bool is_over_cap(const ViewProcess &process, const control::GpuStatus &books) {
    return books.cap && books.held > *books.cap && !process.suspended;
}

std::string gpu_label(const View &view, const ViewGpu &gpu) {
    const auto name = [](const std::optional<int> &index, const std::string &uuid) {
        return index ? "GPU " + std::to_string(*index) : plain(uuid.substr(0, 12));  // "GPU-8f3a1b2c"
    };
    if (gpu.parent.empty()) return name(gpu.index, gpu.uuid);
    const ViewGpu *whole = whole_of(view, gpu);
    return name(whole ? whole->index : std::nullopt, gpu.parent) + " " +
           (gpu.index ? "MIG " + std::to_string(*gpu.index) : plain(gpu.uuid.substr(0, 12)));
}

std::string process_label(const ViewProcess &process) {
    return std::to_string(process.pid) + (process.name.empty() ? "" : " (" + plain(process.name) + ")");
}

std::string clock_text(control::UnixMs at, control::UnixMs now) {
    const tm then = local(at), today = local(now);
    const bool same = then.tm_yday == today.tm_yday && then.tm_year == today.tm_year;
    std::array<char, 32> text{};
    const std::size_t length = std::strftime(text.data(), text.size(), same ? "%H:%M:%S" : "%Y-%m-%d %H:%M:%S", &then);
    return {text.data(), length};
}

std::string span_text(control::UnixMs from, control::UnixMs to) {
    const std::int64_t seconds = std::max<std::int64_t>(to - from, 0) / 1000;
    if (seconds < 60) return std::to_string(seconds) + " s";
    if (seconds < 3600) return std::to_string(seconds / 60) + " min";
    if (seconds < 48 * 3600) return std::to_string(seconds / 3600) + " h " + std::to_string(seconds / 60 % 60) + " min";
    return std::to_string(seconds / 86'400) + " days";
}

std::string wait_text(const control::Waiting &one, int pid, control::UnixMs now) {
    std::string out = policy::format_human(one.bytes) + " since " + span_text(one.since, now);
    if (one.thread != pid) out += " (thread " + std::to_string(one.thread) + ")";
    out += ": it met " + std::string(policy::obstacle_text(one.why));
    if (one.step) out += "; the next growth step is due in " + span_text(now, *one.step);
    return out + "; it fails in " + span_text(now, one.until) + " unless there is room by then";
}

bool has_waited_long(const control::Waiting &one, control::UnixMs now) {
    constexpr control::UnixMs kLong = 1000;
    return now - one.since >= kLong;
}

std::string nvml_says(const View &view, std::size_t process) {
    std::string out;
    for (const ViewGpu &gpu : view.gpus)
        for (const ViewUse &use : gpu.uses)
            if (use.process == process && use.nvml)
                out += (out.empty() ? "" : ", ") + policy::format_human(*use.nvml) + " of " + gpu_label(view, gpu);
    return out.empty() ? out : "NVML says that it holds " + out;
}

}  // namespace curb::cli
