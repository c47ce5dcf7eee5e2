// Texts that the table, the notes and the details share, and the JSON.
#include "ps/ps_text.hpp"

#include <algorithm>

#include "control/messages.hpp"
#include "machine/target.hpp"
#include "policy/values/size.hpp"
#include "terminal/format.hpp"
#include "terminal/json.hpp"
#include "terminal/text_width.hpp"

namespace curb::cli {
namespace {

using json::list;
using json::object;
using json::text_or_null;

std::string posted_json(const control::board::Gpu &posted) {
    return object({{"held", posted.held}, {"cap", posted.cap}, {"waits_for", posted.wants}});
}

std::string use_json(const View &view, const ViewUse &use) {
    const control::board::Gpu *posted = posted_of(view, use);
    const control::GpuStatus *books = books_of(view, use);
    // "process" is the place in "processes", of which several may have one pid.
    return object({{"process", use.process},
                   {"pid", view.processes[use.process].pid},
                   {"nvml", use.nvml},
                   {"idle", use.idle},
                   {"posted", posted ? posted_json(*posted) : "null"},
                   {"books", books ? control::json_of(*books) : "null"}});
}

std::string gpu_json(const View &view, const ViewGpu &gpu) {
    return object({{"index", gpu.index},
                   {"uuid", json::text(gpu.uuid)},
                   {"parent", text_or_null(gpu.parent)},
                   {"name", text_or_null(gpu.name)},
                   {"mig", gpu.mig},
                   {"shares_host_memory", gpu.shares_host_memory},
                   {"total", gpu.total},
                   {"used", gpu.used},
                   {"free", gpu.free},
                   {"uses", list(gpu.uses, [&](const ViewUse &use) { return use_json(view, use); })}});
}

std::string process_json(const ViewProcess &process) {
    const std::optional<bool> under_curb = is_under_curb(process);
    return object({{"pid", process.pid},
                   {"user", text_or_null(process.user)},
                   {"name", text_or_null(process.name)},
                   {"command", text_or_null(process.command)},
                   {"container", text_or_null(process.container)},
                   {"under_curb", under_curb ? json::Value(*under_curb) : json::Value("null")},
                   {"state", json::text(state_name(state_of(process)))},
                   {"stopped", process.stopped},
                   {"suspended", process.suspended},
                   {"elsewhere", process.elsewhere},
                   {"trouble", text_or_null(process.trouble)},
                   {"status", process.status ? control::json_of(*process.status) : "null"}});
}

}  // namespace

std::string gpu_label(const View &view, const ViewGpu &gpu) {
    const auto name = [](const std::optional<int> &index, const std::string &uuid) {
        return index ? "GPU " + std::to_string(*index) : plain(uuid.substr(0, 12));  // "GPU-8f3a1b2c"
    };
    if (gpu.parent.empty()) return name(gpu.index, gpu.uuid);
    const ViewGpu *whole = whole_of(view, gpu);
    return name(whole ? whole->index : std::nullopt, gpu.parent) + " " +
           (gpu.index ? "MIG " + std::to_string(*gpu.index) : plain(gpu.uuid.substr(0, 12)));
}

std::string clock_text(control::UnixMs at, control::UnixMs now) {
    const bool is_today = local_time(at / 1000, "%F") == local_time(now / 1000, "%F");
    return local_time(at / 1000, is_today ? "%T" : "%F %T");
}

std::string shortened_command(const std::string &text, std::size_t columns, bool unicode) {
    if (width_of(text) <= columns) return text;
    const std::size_t slash = text.rfind('/', text.find(' '));
    const bool has_folder = slash != std::string::npos && slash + 1 < text.size();
    return clipped(has_folder ? text.substr(slash + 1) : text, columns, unicode);
}

std::string span_text(control::UnixMs from, control::UnixMs to) {
    const std::int64_t seconds = std::max<std::int64_t>(to - from, 0) / 1000;
    if (seconds < 60) return fmt::format("{} s", seconds);
    if (seconds < 3600) return fmt::format("{} min", seconds / 60);
    if (seconds < 48 * 3600) return fmt::format("{} h {} min", seconds / 3600, seconds / 60 % 60);
    return fmt::format("{} days", seconds / 86'400);
}

std::string wait_text(const control::Waiting &one, int pid, control::UnixMs now) {
    return fmt::format("{}, {} so far{}: it hit {}{}; {}", policy::format_human(one.bytes), span_text(one.since, now),
                       one.thread == pid ? "" : fmt::format(" (thread {})", one.thread), policy::limit_text(one.why),
                       one.step ? "; the next growth step is due in " + span_text(now, *one.step) : "",
                       one.until == 0
                           ? "it waits for its turn"
                           : fmt::format("it fails in {} unless there is room by then", span_text(now, one.until)));
}

std::string nap_end_text(const View &view, std::size_t process, control::UnixMs now) {
    const control::NapStatus &nap = *view.processes[process].status->nap;
    if (nap.no_room_since == 0) return "until its next CUDA call";
    std::string out = "and a call has waited " + span_text(nap.no_room_since, now) + " for room to come back";
    for (const ViewGpu &gpu : view.gpus) {
        const auto is_own = [=](const ViewUse &use) { return use.process == process; };
        const auto is_other = [=](const ViewUse &use) { return use.process != process && use.nvml; };
        const auto largest = std::find_if(gpu.uses.begin(), gpu.uses.end(), is_other);
        if (largest == gpu.uses.end() || std::none_of(gpu.uses.begin(), gpu.uses.end(), is_own)) continue;
        const ViewProcess &other = view.processes[largest->process];
        out += fmt::format("; {} holds {} of {}", label_of(other.pid, other.name), policy::format_human(*largest->nvml),
                           gpu_label(view, gpu));
    }
    return out;
}

std::string remedy_for(policy::Limit why, int pid) {
    switch (why) {
        case policy::Limit::cap: return fmt::format("curb cap {} SIZE raises the cap", pid);
        case policy::Limit::allowance:
            return "it grows with time; growth.start, growth.step and growth.every in its policy let it grow sooner";
        case policy::Limit::keep_free:
            return "other processes have to free memory; or lower growth.keep_free in its policy";
        case policy::Limit::device: return "make room: curb release --all, or end what holds the most";
        case policy::Limit::job:
            return "free memory in the other processes of its job (curb release PID), or raise the job's cap";
        case policy::Limit::policy: break;
    }
    return "curb policy check";
}

const control::Refusal *last_refusal(const control::Status &status, const control::GpuStatus &gpu) {
    const auto &all = status.refusals;
    const auto last = std::find_if(all.rbegin(), all.rend(), [&](const auto &one) { return one.gpu == gpu.ordinal; });
    return last == all.rend() ? nullptr : &*last;
}

std::string refusal_text(const control::GpuStatus &gpu, const control::Refusal &last, control::UnixMs now,
                         const std::string &where) {
    return fmt::format(
        "refused {}{}, last {}: {} hit {}", counted(control::refused(gpu), "request"), where, clock_text(last.at, now),
        last.bytes == 0 ? "code of unknown size" : policy::format_human(last.bytes), policy::limit_text(last.why));
}

std::string refusal_help(int pid, const control::GpuStatus &gpu, const control::Refusal &last) {
    if (last.why != policy::Limit::cap) return remedy_for(last.why, pid);
    if (last.bytes > gpu.total) return "none: the GPU has " + policy::format_human(gpu.total);
    if (gpu.ceiling) return "the machine's ceiling allows no more; ask who keeps /etc/curb/policy.json";
    return fmt::format("raise it: curb cap {} {}", pid,
                       policy::format_exact(policy::cap_that_serves(last.held, last.bytes, last.limit)));
}

Ink ink_of(State state) {
    switch (state) {
        case State::over_cap: return Ink::red;
        case State::unknown:
        case State::no_curb: return Ink::dim;
        case State::releasing: return Ink::green;
        case State::running: return Ink::plain;
        default: return Ink::yellow;
    }
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

std::string ps_json(const View &view, const std::vector<PsError> &errors, control::UnixMs now) {
    const auto error = [](const PsError &one) {
        return object({{"pid", one.pid}, {"message", json::text(one.message)}});
    };
    return object({{"time", now},
                   {"time_unix_seconds", policy::json_text(static_cast<double>(now) / 1000)},
                   {"nvml_fault", text_or_null(view.nvml_fault)},
                   {"gpus", list(view.gpus, [&](const ViewGpu &gpu) { return gpu_json(view, gpu); })},
                   {"processes", list(view.processes, process_json)},
                   {"errors", list(errors, error)}});
}

}  // namespace curb::cli
