// `curb release`: asks processes through their control sockets to release memory, and prints the bytes of each step.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <mutex>
#include <utility>

#include "command/command.hpp"
#include "control/client.hpp"
#include "machine/selection.hpp"
#include "machine/sim.hpp"
#include "machine/target.hpp"
#include "policy/fields.hpp"
#include "policy/names.hpp"
#include "policy/values/size.hpp"
#include "policy/values/words.hpp"
#include "terminal/format.hpp"
#include "terminal/messages.hpp"
#include "terminal/terminal.hpp"
#include "terminal/text_width.hpp"

namespace curb::cli {
namespace {

using namespace std::chrono_literals;

struct ReleaseOptions {
    Selection selection;
    std::optional<std::string> bytes;
    std::vector<std::string> steps;  // in this order
    bool json = false, sim = false;

    void declare(Options &takes) {
        selection.declare(takes);
        takes.option("--bytes", bytes, "SIZE", "Stop once this much is free: 2GiB, 512MiB");
        takes.options("--step", steps, "NAME", "Take this step instead of the policy's; several in the order given");
        takes.sim(sim);
        takes.json(json);
    }
};

constexpr auto kReleasePatience = 5s;  // for the process to answer at all; its release may take longer
constexpr auto kLongest = 30s;         // of processes that a description selects, for each to end its release
constexpr auto kSilence = 2s;          // before curb prints which processes it waits for
constexpr const char *kTrigger = "curb release";

using Answer = policy::Result<control::ReleaseReport, std::string>;

// A process and its answer, if it has answered.
struct Asked {
    int pid = 0;
    std::optional<Answer> answer{};
};

policy::Result<policy::ReleaseRequest, std::string> request_of(const ReleaseOptions &options) {
    policy::ReleaseRequest out;
    if (options.bytes) {
        const auto bytes = bytes_in(*options.bytes);
        if (!bytes) return bytes.error();
        if (*bytes == 0)
            return std::string("--bytes 0 asks for nothing; leave --bytes out to release all that is cached");
        out.wanted = *bytes;
    }
    for (const std::string &name : options.steps) {
        const auto step = policy::parse_step(name);
        if (!step) return "--step: " + step.error();
        if (!out.steps) out.steps.emplace();
        if (std::find(out.steps->begin(), out.steps->end(), *step) == out.steps->end()) out.steps->push_back(*step);
    }
    return out;
}

// Returns one line of the table for several processes. The columns have fixed widths, because curb prints each line
// when its answer arrives.
std::string row_of(const Asked &process) {
    const control::ReleaseReport &report = **process.answer;
    std::vector<std::string> from;
    for (const control::StepReport &step : report.steps)
        if (step.freed != 0) from.push_back(policy::step_name(step.step) + (" " + control::size_text(step.freed)));
    if (from.empty()) from.push_back(fmt::format("nothing; curb release {} says why", process.pid));
    return fmt::format("{:>8}  {:>10}  {:>8}  {:<15}  {}\n", process.pid, control::size_text(control::freed(report)),
                       control::time_text(report.milliseconds), policy::plain(name_of(process.pid)),
                       policy::joined(from, ", "));
}
constexpr const char *kTitles = "     PID    RELEASED        IN  NAME             FROM\n";

std::string text_of(const Asked &process) {
    const control::ReleaseReport &report = **process.answer;
    std::string head = fmt::format("{}: released {} in {}", control::process_text(process.pid),
                                   control::size_text(control::freed(report)), control::time_text(report.milliseconds));
    // Another release was running, and this request joined it.
    if (report.trigger != kTrigger) head += ", together with the release on " + policy::plain(report.trigger);
    if (report.steps.empty()) head += ": its policy has no release steps";
    std::vector<std::vector<std::string>> lines{{head}};
    for (const control::StepReport &step : report.steps)
        lines.push_back({std::string("  ") + policy::step_name(step.step), control::size_text(step.freed),
                         control::time_text(step.milliseconds), policy::plain(step.reason)});
    const std::string nothing = policy::plain(control::returns_nothing_text(report.returns_nothing));
    return aligned(lines) + (nothing.empty() ? "" : "  " + nothing + "\n");
}

std::string answer_json(const Asked &process) {
    if (!*process.answer) return error_json(process.pid, process.answer->error());
    const control::ReleaseReport &report = **process.answer;
    const auto step_json = [](const control::StepReport &step) { return control::json_of(step); };
    return json::object({{"pid", process.pid},
                         {"trigger", json::text(report.trigger)},
                         {"steps", json::list(report.steps, step_json)},
                         {"freed", control::freed(report)},
                         {"milliseconds", policy::json_text(report.milliseconds)},
                         {"seconds", policy::json_text(report.milliseconds / 1000)},
                         {"returns_nothing", json::list(report.returns_nothing, json::text)}});
}

std::string suspended_text(int pid) {
    return fmt::format("process {} is suspended, and its memory is free for others; curb resume {} brings it back",
                       label_of(pid, name_of(pid)), pid);
}

// Prints which processes have not answered yet.
void name_slow(const std::vector<Asked> &processes) {
    std::vector<std::string> slow;
    for (const Asked &one : processes)
        if (!one.answer) slow.push_back(std::to_string(one.pid));
    say::hint("waiting for process " + policy::joined(slow, ", ") +
              ": a release waits for Python's lock and for the device; Ctrl-C leaves it going");
}

// Asks all processes at the same time and prints each answer when it arrives. If a description selects them, waits at
// most kLongest, so that one process cannot block the command for ever. On a terminal, names the slow processes.
void ask_all(std::vector<Asked> &processes, const policy::ReleaseRequest &request, const ReleaseOptions &options) {
    const bool is_described = options.selection.is_described();
    std::mutex printing;
    std::string titles = kTitles;
    const auto take = [&](int pid, Answer answer) {
        const std::scoped_lock lock(printing);
        Asked &one =
            *std::find_if(processes.begin(), processes.end(), [=](const Asked &asked) { return asked.pid == pid; });
        one.answer = std::move(answer);
        if (options.json) return;
        if (*one.answer)
            print(processes.size() > 1 ? std::exchange(titles, "") + row_of(one) : text_of(one));
        else
            say::error(policy::plain(one.answer->error()));
    };
    const auto begin = std::chrono::steady_clock::now();
    const auto take_reply = [&](control::Answer answer) {
        auto report = report_in<control::ReleaseReport>(answer.pid, std::move(answer.reply));
        if (!report && is_described && std::chrono::steady_clock::now() - begin >= kLongest)
            report = report.error() + "; its release may still be under way: curb release " +
                     std::to_string(answer.pid) + " waits for it";
        take(answer.pid, std::move(report));
    };
    std::vector<int> pids;
    for (const Asked &one : processes) {
        // A suspended process holds next to nothing, and its threads wait in the driver until it is resumed.
        if (is_suspended(identity_of(one.pid)))
            take(one.pid, suspended_text(one.pid));
        else
            pids.push_back(one.pid);
    }
    // A process that does not answer the first question would not answer the release either.
    const std::vector<control::Question> questions{
        {control::StatusRequest(), kReleasePatience},
        {request, is_described ? std::chrono::milliseconds(kLongest) : control::kForEver}};
    // Deferred if there can be no thread: then nothing is said of slow processes.
    auto asking =
        std::async(std::launch::async | std::launch::deferred, [&] { control::ask_each(pids, questions, take_reply); });
    if (asking.wait_for(kSilence) == std::future_status::timeout && ::isatty(STDERR_FILENO) != 0) {
        const std::scoped_lock lock(printing);
        name_slow(processes);
    }
    asking.get();  // throws if an answer could not be written
}

void print_sum(const std::vector<Asked> &processes) {
    control::ReleaseReport all;
    std::size_t answered = 0;
    for (const Asked &one : processes) {
        if (!*one.answer) continue;
        ++answered;
        const auto &steps = one.answer->value().steps;
        all.steps.insert(all.steps.end(), steps.begin(), steps.end());
    }
    if (answered > 1)
        print(fmt::format("{} in all, of {} processes\n", control::size_text(control::freed(all)), answered));
}

int release(const ReleaseOptions &options) {
    const auto request = request_of(options);
    if (!request) return failed(request.error());
    if (const auto fault = use_sim(options.sim)) return failed(*fault);
    const auto processes = found(options.selection, "release");
    if (!processes) return failed(processes.error());
    std::vector<Asked> asked;
    for (const int pid : *processes) asked.push_back({pid});
    ask_all(asked, *request, options);
    if (options.json)
        print_line(json::list(asked, answer_json));
    else if (asked.empty())
        print(fmt::format("no process to ask: none{} has used CUDA under curb\n",
                          ::geteuid() == 0 ? "" : " of this user"));
    else
        print_sum(asked);
    return std::all_of(asked.begin(), asked.end(), [](const Asked &one) { return one.answer->ok(); }) ? 0 : 1;
}

}  // namespace

extern const Command kRelease{
    .name = "release",
    .line = "Make processes give back memory that they cache",
    .help = R"(
Frees what a process and its frameworks cache; what they use stays. A release waits until the program gives up Python's
lock; without PIDs, at most 30 s. Ctrl-C ends the wait, not the release. It reaches processes of this user (for root: of
all users) that have used CUDA under curb.

Exit status 0: all have answered, also if there was nothing to give back; 1: some could not be asked, or did not answer.

Examples:
  curb release 4711
  curb release --all --json                   one answer a process
  curb release --name '*train*' --user alice  what matches both
  curb release --gpu 1                        the processes on one GPU
  curb release 4711 --bytes 2GiB              stops once 2 GiB are back
  curb release 4711 --step pools              that step alone)",
    .takes = takes<ReleaseOptions, release>,
};

}  // namespace curb::cli
