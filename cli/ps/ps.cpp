// `curb ps`: prints the users of the GPUs, as a table, in detail, or as JSON.
#include <algorithm>
#include <charconv>
#include <map>

#include "command/command.hpp"
#include "control/proc.hpp"
#include "machine/selection.hpp"
#include "machine/sim.hpp"
#include "machine/view.hpp"
#include "policy/values/duration.hpp"
#include "policy/values/words.hpp"
#include "ps/ps_text.hpp"
#include "terminal/messages.hpp"
#include "terminal/terminal.hpp"
#include "terminal/watch.hpp"

namespace curb::cli {
namespace {

using namespace std::chrono_literals;

struct PsOptions {
    Selection selection;  // with PIDs: details of each; without: the table
    bool json = false, sim = false;
    std::optional<std::string> watch;

    void declare(Options &takes) {
        takes.pids(selection.pids, "Process to show in detail; a shell or launcher stands for what it started");
        selection.declare_filters(takes, Selection::Takes::no_all);
        takes.json(json);
        takes.sim(sim);
        takes.option_or("-w,--watch", watch, "[SECONDS]", "2", "Repeat after so many seconds (2), until Ctrl-C");
    }
};

constexpr auto kTablePatience = 300ms;     // the table shows the processes that have answered by then
constexpr auto kDetailsPatience = 1000ms;  // some details take the process milliseconds

// Returns the interval of --watch. nullopt if it was not given.
policy::Result<std::optional<policy::Duration>, std::string> every(const PsOptions &options) {
    if (!options.watch) return std::optional<policy::Duration>();
    double seconds = 0;
    const char *end = options.watch->data() + options.watch->size();
    const auto [stop, error] = std::from_chars(options.watch->data(), end, seconds, std::chars_format::fixed);
    constexpr double kMost = 3600;  // a larger number is likely to be a pid
    const bool is_number = error == std::errc() && stop == end;
    if (is_number && seconds >= 0.1 && seconds <= kMost)
        return std::optional(policy::Duration(static_cast<policy::Duration::rep>(seconds * 1000)));
    return "--watch: " + policy::quote(*options.watch) +
           " is not an interval; write seconds, from 0.1 to 3600, as 2 or 0.5" +
           (is_number && seconds > kMost ? "; to watch a process: curb ps " + *options.watch + " --watch" : "");
}

struct Shown {
    View view;
    std::vector<PsError> errors;  // of the named processes that cannot be shown
    bool silent = false;          // a named process can be shown, but does not answer
};

std::string what_is_wrong(const Polled &found, int pid, std::optional<std::size_t> process) {
    const auto failure = found.failures.find(pid);
    std::string out =
        failure == found.failures.end() ? control::process_text(pid) + " has ended meanwhile" : failure->second;
    if (!process) return out;
    const std::string says = nvml_says(found.view, *process);
    return says.empty() ? out : out + "; " + says;
}

Shown polled_view(const std::vector<int> &pids) {
    Polled found = poll(pids, kDetailsPatience);
    Shown out;
    std::vector<std::size_t> shown;
    for (const int pid : pids) {
        const auto &all = found.view.processes;
        const auto at = std::find_if(all.begin(), all.end(),
                                     [=](const ViewProcess &one) { return one.pid == pid && has_pid_here(one); });
        const auto index = static_cast<std::size_t>(at - all.begin());
        if (at != all.end() && at->under_curb) {
            out.silent |= !at->status;
            shown.push_back(index);
        } else {
            out.errors.push_back(
                {pid, what_is_wrong(found, pid, at == all.end() ? std::nullopt : std::optional(index))});
        }
    }
    std::sort(shown.begin(), shown.end());
    out.view = only(found.view, shown);
    return out;
}

View selected_view(const Selection &selection) {
    View view = poll_all(kTablePatience);
    if (!selection.is_described()) return view;
    std::vector<std::size_t> fitting;
    for (std::size_t i = 0; i < view.processes.size(); ++i)
        if (fits(selection, view, i)) fitting.push_back(i);
    return only(view, fitting);
}

std::string text_of(const Shown &shown, const PsOptions &options, const Screen &screen) {
    const control::UnixMs now = control::unix_now();
    if (options.json) return ps_json(shown.view, shown.errors, now) + "\n";
    if (options.selection.has_filters() && shown.view.processes.empty())
        return "no process matches; curb ps lists all\n";
    if (options.selection.pids.empty()) return ps_table(shown.view, screen, now);
    std::string out;
    for (std::size_t i = 0; i < shown.view.processes.size(); ++i)
        out += (i == 0 ? "" : "\n") + ps_detail(shown.view, i, screen, now);
    for (const PsError &one : shown.errors)
        if (options.watch) out += one.message + "\n";
    return out;
}

// Prints each message once.
void complain(std::map<int, std::string> &messages) {
    for (auto &[pid, message] : messages)
        if (!message.empty()) say::error(policy::plain(std::exchange(message, "")));
}

int ps(const PsOptions &options) {
    const auto interval = every(options);
    if (!interval) return failed(interval.error());
    if (const std::string fault = fault_of(options.selection); !fault.empty()) return failed(fault);
    if (const auto fault = use_sim(options.sim)) return failed(*fault);
    const std::vector<int> pids = programs_of(options.selection.pids);
    std::map<int, std::string> complaints;
    const auto frame = [&](const Screen &screen) {
        const Shown shown = pids.empty() ? Shown{selected_view(options.selection), {}, false} : polled_view(pids);
        Frame out;
        out.status = shown.errors.empty() && !shown.silent ? 0 : 1;
        out.last = !pids.empty() && shown.errors.size() == pids.size();
        out.text = text_of(shown, options, screen);
        if (options.json) return out;
        for (const PsError &one : shown.errors) complaints[one.pid] = one.message;
        if (!options.watch || out.last) complain(complaints);  // not while the screen is redrawn
        return out;
    };
    // The line before each answer of --watch. JSON has its own time.
    const auto divider = [&] { return options.json ? "" : "curb ps at " + clock_text(control::unix_now(), 0) + "\n"; };
    if (*interval) return watch(**interval, divider, frame);
    const Frame once = frame(screen_of_stdout());
    print(once.text);
    return once.status;
}

}  // namespace

extern const Command kPs{
    .name = "ps",
    .line = "Show who holds what of the GPUs, under curb and otherwise",
    .help = R"(
Lists the processes of each GPU, under curb or not. HELD is what a process under
curb holds by its own books; NVML is the driver's figure, the only one for other
processes. Of another user's process under curb, HELD, CAP and STATE are what it
tells all users. CAP none: it is watched, but not capped. IDLE: held and not
used for a minute; it is there if there is any. STATE: running, waiting (for
memory), napping, suspended, stopped, over cap, releasing, silent (it does not
answer), no curb, unknown (of another user or in another pid namespace, and it
does not tell). A narrow terminal shows fewer columns, never fewer processes;
without the column NVML, HELD has its figure for processes without books. Notes
follow the table: what a request waits for, refused requests of the last ten
minutes, a process that is suspended, stopped, silent or over its cap. It
answers within 0.3 s, also if processes are stuck; if NVML is stuck, after 30 s,
without its figures.

With PID: its policy, what it holds by kind, pools, its last refusals and
releases, calls that bypass curb. Processes under curb are those of this user
(of all users, for root).

Exit status 0: shown, or ended by Ctrl-C; 1: a PID does not exist, is not under
curb, is another user's, or does not answer.

Examples:
  curb ps
  curb ps 4711                          all that is known of one process
  curb ps --user alice --gpu nvml:1     alice's processes on that GPU
  curb ps --watch                       repeat every 2 seconds; --watch 5: every 5
  curb ps --json | jq '.gpus[].free'    sizes in bytes)",
    .takes = takes<PsOptions, ps>,
};

}  // namespace curb::cli
