// Asks the capped processes, NVML and /proc.
#include "view.hpp"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "control/client.hpp"
#include "control/proc.hpp"
#include "control/suspended.hpp"
#include "join.hpp"
#include "nvml.hpp"
#include "policy/words.hpp"
#include "target.hpp"

namespace curb::cli {
namespace {

// A process can put any text in the place of its arguments, even gigabytes.
constexpr std::size_t kMostOfCommand = 64 << 10;

using control::proc_text;

// Asks once for each user: a directory service behind it may be slow.
const std::string &user_name(uid_t uid) {
    static std::map<uid_t, std::string> known;
    const auto found = known.find(uid);
    if (found != known.end()) return found->second;
    const passwd *entry = ::getpwuid(uid);
    return known[uid] =
               entry && entry->pw_name && *entry->pw_name ? policy::plain(entry->pw_name) : std::to_string(uid);
}

ProcessFacts look(int pid, bool asked) {
    ProcessFacts out;
    out.pid = pid;
    control::suspended::Process process{pid, control::suspended::start_of(pid), 0, 0};
    const std::string status = proc_text(pid, "status");
    if (process.start == 0 || status.empty()) return out;
    out.lives = true;
    process.uid = static_cast<unsigned>(control::number_in(status, "Uid:"));
    process.gid = static_cast<unsigned>(control::number_in(status, "Gid:"));
    out.stopped = control::is_stopped(status);
    out.user = user_name(process.uid);
    const std::string comm = proc_text(pid, "comm");
    out.name = policy::plain(std::string_view(comm).substr(0, comm.find('\n')));
    std::string words = proc_text(pid, "cmdline", kMostOfCommand);
    while (!words.empty() && words.back() == '\0') words.pop_back();
    std::replace(words.begin(), words.end(), '\0', ' ');
    out.command = policy::plain(words);
    out.suspended = control::suspended::read(process).has_value();
    if (!asked) out.preloaded = proc_text(pid, "maps").find("/libcurb.so") != std::string::npos;
    return out;
}

std::set<int> listed_in(const policy::Result<std::vector<GpuState>, std::string> &gpus) {
    std::set<int> out;
    if (gpus)
        for (const GpuUser *user : users_of(*gpus)) out.insert(user->pid);
    return out;
}

policy::Result<std::vector<GpuState>, std::string> ask_nvml() {
    static const auto nvml = Nvml::open();  // 9 ms; once for each run of curb
    if (!nvml) return nvml.error();
    return nvml->gpus();
}

// Joins these answers with NVML and /proc.
View look_beside(std::vector<control::Answer> answers) {
    ViewFacts facts{ask_nvml(), std::move(answers), {}};
    std::set<int> asked, known, missing;
    for (const control::Answer &one : facts.answers) asked.insert(one.pid);
    const auto look_at_new = [&](const std::set<int> &pids) {
        for (const int pid : pids) {
            if (!known.insert(pid).second) continue;
            facts.processes.push_back(look(pid, asked.contains(pid)));
            if (!facts.processes.back().lives) missing.insert(pid);
        }
    };
    look_at_new(asked);
    look_at_new(listed_in(facts.gpus));
    if (missing.empty()) return join(facts);
    // Missing processes have ended. If NVML still lists them, they are in another pid namespace.
    facts.gpus = ask_nvml();
    const std::set<int> still = listed_in(facts.gpus), suspects = std::exchange(missing, {});
    look_at_new(still);
    std::erase_if(facts.processes, [&](const ProcessFacts &one) {
        return suspects.contains(one.pid) && still.contains(one.pid) &&
               ::access(control::proc_path(one.pid, "").c_str(), F_OK) != 0;
    });
    return join(facts);
}

}  // namespace

View look_around(std::chrono::milliseconds patience, bool detail) {
    return look_beside(control::ask_all(control::StatusRequest{detail}, patience));
}

Closely look_closely(const std::vector<int> &pids, std::chrono::milliseconds patience) {
    Closely out;
    std::vector<control::Answer> answers;
    for (const int pid : pids) {
        control::Reply reply = control::ask(pid, control::StatusRequest{true}, patience);
        if (const auto *failure = std::get_if<control::Failure>(&reply)) out.failures[pid] = failure->message;
        // A failure of a process that is not under curb is not an answer.
        const bool is_answer = !out.failures.contains(pid) || look(pid, false).preloaded;
        if (is_answer) answers.push_back({pid, std::move(reply)});
    }
    out.view = look_beside(std::move(answers));
    return out;
}

View only(const View &view, const std::vector<int> &pids) {
    View out;
    out.nvml_fault = view.nvml_fault;
    std::map<std::size_t, std::size_t> kept;  // index there -> index here
    for (std::size_t i = 0; i < view.processes.size(); ++i) {
        if (std::find(pids.begin(), pids.end(), view.processes[i].pid) == pids.end()) continue;
        kept[i] = out.processes.size();
        out.processes.push_back(view.processes[i]);
    }
    for (const ViewGpu &gpu : view.gpus) {
        ViewGpu here = gpu;
        std::erase_if(here.uses, [&](const ViewUse &use) { return !kept.contains(use.process); });
        for (ViewUse &use : here.uses) use.process = kept[use.process];
        if (!here.uses.empty()) out.gpus.push_back(std::move(here));
    }
    return out;
}

const control::GpuStatus *books_of(const View &view, const ViewUse &use) {
    if (!use.books) return nullptr;
    const auto &status = view.processes[use.process].status;
    return status && *use.books < status->gpus.size() ? &status->gpus[*use.books] : nullptr;
}

const ViewGpu *whole_of(const View &view, const ViewGpu &gpu) {
    if (gpu.parent.empty()) return &gpu;
    const auto found =
        std::find_if(view.gpus.begin(), view.gpus.end(), [&](const ViewGpu &one) { return one.uuid == gpu.parent; });
    return found == view.gpus.end() ? nullptr : &*found;
}

}  // namespace curb::cli
