// `curb cap`: changes the cap of a running process by its control socket, and prints the cap in force.

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include "command/command.hpp"
#include "control/client.hpp"
#include "machine/selection.hpp"
#include "machine/sim.hpp"
#include "machine/target.hpp"
#include "machine/view.hpp"
#include "policy/values/gpu_key.hpp"
#include "policy/values/size.hpp"
#include "policy/values/words.hpp"
#include "terminal/format.hpp"
#include "terminal/messages.hpp"
#include "terminal/terminal.hpp"

namespace curb::cli {
namespace {

using namespace std::chrono_literals;

struct CapOptions {
    Selection selection;
    std::vector<std::string> words;  // PIDs, then the size
    std::optional<std::string> size;
    bool reset = false;
    std::string gpu = "*";
    std::optional<std::string> job;
    bool json = false, sim = false;

    void declare(Options &takes) {
        takes.words("PID", words, "Processes under curb, then the cap: 8GiB, 512MiB, 75% of the device");
        selection.declare_filters(takes, Selection::Takes::for_cap);
        takes.flag("--reset", reset, "Back to the cap of its policy");
        takes.option("--gpu", gpu, "KEY", "For this device alone; 1 (nvidia-smi's index), cuda:0, GPU-8f3a");
        takes.option("--job", job, "JOB",
                     "The cap of this job, for all its processes together; JOB as curb ps names it");
        takes.sim(sim);
        takes.json(json);
    }
};

constexpr auto kCapPatience = 5s;

policy::Result<control::CapRequest, std::string> request_of(const CapOptions &options) {
    if (!options.reset && !options.size)
        return std::string("which cap? curb cap PID SIZE, or --reset for that of its policy");
    control::CapRequest out;
    out.job = options.job.has_value();
    const auto key = typed_gpu_key(options.gpu);
    if (!key) return "--gpu: " + key.error();
    out.gpu = policy::gpu_key_text(*key);
    if (options.reset) return out;
    const auto size = policy::parse_size(*options.size);
    if (!size) return size.error();
    out.cap = *size;
    return out;
}

std::string cap_text(const std::optional<policy::Bytes> &cap, const char *of = "") {
    return cap ? of + policy::format_human(*cap) : "no cap";
}

// Returns "process 4711: cuda:0 cap 8 GiB -> 6 GiB; 7.1 GiB is held: …". `whose`: "process 4711", "job slurm 42".
std::string text_of(const std::string &whose, const control::CapChange &gpu, const control::CapRequest &request) {
    std::string out = fmt::format("{}: cuda:{} {}", whose, gpu.ordinal, cap_text(gpu.before, "cap "));
    out += gpu.before == gpu.now ? ", as before" : " -> " + cap_text(gpu.now);
    if (request.cap && gpu.live_cap != request.cap && gpu.live_cap)
        out += fmt::format("; the cap of {} for a more specific key holds: curb cap --gpu cuda:{} --reset removes it",
                           policy::format(*gpu.live_cap), gpu.ordinal);
    else if (request.cap && gpu.ceiling)
        out += "; " + policy::format(*request.cap) + " was asked for, and the machine's ceiling allows no more";
    if (gpu.now && gpu.held > *gpu.now)
        out += "; " + policy::format_human(gpu.held) +
               " is held: curb releases cached memory, and new requests wait or are refused until less is held";
    return out + "\n";
}

std::string of_which(const std::string &what) {
    return "of which process? curb cap PID " + what + ", or --all, --name, --user, --tree; curb ps lists them";
}

// Adds the pid in the word to the selection. Returns the error; empty: none.
std::string take_pid(const std::string &word, CapOptions &options) {
    const auto pid = policy::whole_number(word);
    if (!pid || *pid == 0) {
        if (!policy::parse_size(word)) return policy::quote(word) + " is not the pid of a process";
        return options.reset ? "write either a size or --reset, not both" : of_which(word);
    }
    options.selection.pids.push_back(*pid);
    return {};
}

// Splits the words into PIDs and the size, the last word. With --reset all are PIDs. Returns the error; empty: none.
std::string take_apart(CapOptions &options) {
    std::vector<std::string> words = options.words;
    if (!options.reset && !words.empty() && (words.size() > 1 || options.selection.is_described() || options.job)) {
        options.size = words.back();
        words.pop_back();
    }
    if (options.job && (!words.empty() || options.selection.is_described()))
        return "--job names all processes of a job; write it without others";
    if (options.reset && words.empty() && !options.job && !options.selection.is_described()) return of_which("--reset");
    for (const std::string &word : words)
        if (std::string fault = take_pid(word, options); !fault.empty()) return fault;
    return {};
}

// Prints what a process has answered about its cap or, if not empty, that of `job`; with --json adds it to `answers`
// instead. Returns the exit status.
int print_cap(control::Answer answer, const CapOptions &options, const control::CapRequest &request,
              const std::string &job, std::vector<std::string> &answers) {
    const int pid = answer.pid;
    const auto change = [](const control::CapChange &gpu) { return control::json_of(gpu); };
    const auto whom = job.empty() ? json::Member("pid", pid) : json::Member("job", json::text(job));
    const std::string whose = job.empty() ? "process " + std::to_string(pid) : "job " + policy::plain(job);
    const auto report = report_in<control::CapReport>(pid, std::move(answer.reply));
    if (options.json)
        answers.push_back(report ? json::object({whom, {"gpus", json::list(report->gpus, change)}})
                                 : error_json(pid, report.error()));
    else if (report)
        for (const control::CapChange &gpu : report->gpus) print(text_of(whose, gpu, request));
    else
        say::error(policy::plain(report.error()));
    const bool in_force = report && std::none_of(report->gpus.begin(), report->gpus.end(),
                                                 [&](const auto &gpu) { return request.cap && gpu.ceiling; });
    return in_force ? 0 : 1;
}

// The processes to ask, each with the job whose cap is to change; "": the process's own cap.
using Targets = std::vector<std::pair<int, std::string>>;

// Returns one process of each job that matches: it sets the cap in the ledger that all of the job share.
policy::Result<Targets, std::string> one_of_each_job(const std::string &pattern) {
    std::map<std::string, int> jobs;
    for (const ViewProcess &process : poll_all(kCapPatience).processes)
        if (process.status && names_job(pattern, process.status->job)) jobs.emplace(process.status->job, process.pid);
    if (jobs.empty()) return "no job " + policy::quote(pattern) + " is running; curb ps lists them";
    Targets out;
    for (const auto &[job, pid] : jobs) out.emplace_back(pid, job);
    return out;
}

policy::Result<Targets, std::string> selected(const Selection &selection) {
    const auto processes = found(selection, "cap");
    if (!processes) return processes.error();
    Targets out;
    for (const int pid : *processes) out.emplace_back(pid, "");
    return out;
}

int cap(const CapOptions &typed) {
    CapOptions options = typed;
    if (const std::string fault = take_apart(options); !fault.empty()) return failed(fault);
    const auto request = request_of(options);
    if (!request) return failed(request.error());
    if (const auto fault = use_sim(options.sim)) return failed(*fault);
    const auto processes = options.job ? one_of_each_job(*options.job) : selected(options.selection);
    if (!processes) return failed(processes.error());
    if (processes->empty()) say::hint("no process runs under curb");
    int status = 0;
    std::vector<std::string> answers;
    std::vector<int> pids;
    for (const auto &[pid, job] : *processes) pids.push_back(pid);
    std::map<int, control::Reply> replies;
    control::ask_each(pids, {{*request, kCapPatience}},
                      [&](control::Answer one) { replies[one.pid] = std::move(one.reply); });
    for (const auto &[pid, job] : *processes)
        status = std::max(status, print_cap({pid, std::move(replies[pid])}, options, *request, job, answers));
    if (options.json) print_line(json::list(answers));
    return status;
}

}  // namespace

extern const Command kCap{
    .name = "cap",
    .line = "Change the cap of a running process",
    .usage = "curb cap [OPTIONS] PID... SIZE",
    .help = R"(
The cap is in force at once, until --reset or the end of the process; edits of the policy do not change it. It may be
higher than the policy's, but not than the machine's ceiling, /etc/curb/policy.json. If the process holds more than the
new cap, curb releases cached memory, and new requests wait or are refused. It takes no memory that the program uses.

--job sets the cap of a job, which all its processes share, until the last of them ends. Processes that join it later
have it too.

Several keys may have a cap; for each device the cap of the most specific key holds, as in policies. --reset removes the
caps of the devices that --gpu names; without --gpu, of all.

Exit status 0: set, also if a cap for a more specific key is in force instead, which the answer says; 1: not in force,
because the machine's ceiling allows no more, or the process could not be asked or cannot do it; 125: wrong arguments,
or the answer could not be written.

Examples:
  curb cap 4711 6GiB
  curb cap 4711 50% --gpu cuda:1              half of that device
  curb cap 4711 --reset
  curb cap --job 'slurm 42' 16GiB             all its processes together
  curb cap 4711 6GiB --json | jq '.[].gpus[].held')",
    .takes = takes<CapOptions, cap>,
};

}  // namespace curb::cli
