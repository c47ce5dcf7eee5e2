// What is typed -> one call of commands.hpp.
//
// The command of `curb run` or `curb policy explain` never passes through CLI11, whose options would be looked for in
// it: argv is split first, at the first `--` or, for `run` without one, at the first word that is neither an option of
// ours nor its value.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <functional>
#include <sstream>

#include "commands.hpp"
#include "help.hpp"
#include "help_format.hpp"
#include "policy/words.hpp"
#include "terminal.hpp"

namespace curb::cli {
namespace {

using Words = std::vector<std::string>;

struct Split {
    Words ours;
    Words command;
    bool clear = true;  // false: a word stands before `--` that may or may not begin the command
};

// The first word after `run` that is neither an option nor the value of one.
Words::const_iterator command_begin(const Words &words, const CLI::App &run) {
    for (auto word = words.begin() + 1; word != words.end(); ++word) {
        if (!word->starts_with("-") || *word == "--") return word;
        const CLI::Option *option = run.get_option_no_throw(*word);
        const bool takes_next = option != nullptr && option->get_items_expected_max() > 0;
        if (takes_next && word + 1 != words.end() && word[1] != "--") ++word;
    }
    return words.end();
}

// At `--` alone, for commands that take words of their own.
Split split_at_dashes(const Words &words) {
    const auto dashes = std::find(words.begin(), words.end(), "--");
    return {{words.begin(), dashes}, {dashes == words.end() ? dashes : dashes + 1, words.end()}};
}

Split split(const Words &words, const CLI::App &run) {
    const auto begin = command_begin(words, run);
    if (begin == words.end()) return {words, {}};
    const bool dashes = *begin == "--";
    const bool clear = dashes || std::find(begin, words.end(), "--") == words.end();
    return {{words.begin(), begin}, {begin + (dashes ? 1 : 0), words.end()}, clear};
}

// What is wrong with the words, and which help is the right one: that of the command that they lead to.
int refuse(const CLI::App &app, const Words &words, std::string why) {
    std::string name = app.get_name();
    const CLI::App *command = &app;
    auto word = words.begin();
    for (; word != words.end(); ++word) {
        const auto named = command->get_subcommands([&](const CLI::App *one) { return one->check_name(*word); });
        if (named.empty()) break;
        command = named.front();
        name += ' ' + *word;
    }
    if (command->get_require_subcommand_min() > 0) {
        why = name + " needs a command";
        if (word != words.end())
            why = name + " has no " + (word->starts_with("-") ? "option " : "command ") + policy::quote(*word);
    }
    complain(why);
    complain("see " + name + " --help");
    return kFailure;
}

// What was asked for, once all of it has been read.
using Chosen = std::function<int()>;

// A command of curb, or of one of its commands: what it takes, and what it calls.
template <class Options>
CLI::App *add(CLI::App &parent, const char *name, const char *what, const char *footer, Options &options,
              int (*body)(const Options &), Chosen &chosen) {
    CLI::App *command = parent.add_subcommand(name, what);
    command->footer(footer);
    command->callback([&chosen, &options, body] { chosen = [&options, body] { return body(options); }; });
    return command;
}

CLI::Option *add_json(CLI::App *command, bool &json) {
    return command->add_flag("--json", json, "Machine-readable answer on standard output");
}

int pid_in(const std::string &word) {
    const auto pid = policy::whole_number(word);
    if (!pid || *pid == 0) throw CLI::ValidationError(policy::quote(word) + " is not the pid of a process");
    return *pid;
}

CLI::Option *add_pid(CLI::App *command, int &pid, const char *what) {
    return command->add_option_function<std::string>(
        "PID", [&pid](const std::string &word) { pid = pid_in(word); }, what);
}

// Each once, in their order.
CLI::Option *add_pids(CLI::App *command, std::vector<int> &pids, const char *what) {
    const auto take = [&pids](const Words &words) {
        for (const std::string &word : words)
            if (const int pid = pid_in(word); std::find(pids.begin(), pids.end(), pid) == pids.end())
                pids.push_back(pid);
    };
    return command->add_option_function<Words>("PID", take, what);
}

CLI::App *add_run(CLI::App &app, RunOptions &options, Chosen &chosen) {
    CLI::App *command = add(app, "run", "Run a command under a policy: curb run [OPTIONS] -- COMMAND...", help::kRun,
                            options, run, chosen);
    command->add_option("--cap", options.cap, "Ceiling of GPU memory on each device: 8GiB, 512MiB, 75%")
        ->type_name("SIZE");
    command->add_option("--policy", options.policy, "Policy file")->type_name("FILE");
    command->add_flag("--strict", options.strict, "Fail if curb cannot come into the program, instead of warning");
    command->add_flag("--sim", options.sim, "Use the simulated driver: no GPU is needed or touched");
    command->add_flag("--dry-run", options.dry_run, "Print what would be set and run, and stop");
    return command;
}

void add_ps(CLI::App &app, PsOptions &options, Chosen &chosen) {
    CLI::App *command =
        add(app, "ps", "Show who holds what of the GPUs, under curb and otherwise", help::kPs, options, ps, chosen);
    add_pids(command, options.pids, "Process to show in detail");
    add_json(command, options.json);
    command->add_option("--watch", options.watch, "Again every so many seconds, until Ctrl-C")->type_name("SECONDS");
}

void add_release(CLI::App &app, ReleaseOptions &options, Chosen &chosen) {
    CLI::App *command = add(app, "release", "Make processes give back memory that they cache", help::kRelease, options,
                            release, chosen);
    add_pids(command, options.pids, "Process that runs under curb");
    command->add_flag("--all", options.all, "All processes that can be asked");
    command->add_option("--bytes", options.bytes, "So much is enough: 2GiB, 512MiB")->type_name("SIZE");
    command->add_option("--step", options.steps, "Take this step instead of the policy's; several in the order given")
        ->type_name("NAME")
        ->allow_extra_args(false);  // what follows the name is a PID
    add_json(command, options.json);
}

void add_cap(CLI::App &app, CapOptions &options, Chosen &chosen) {
    CLI::App *command = add(app, "cap", "Change the cap of a running process: curb cap [OPTIONS] PID SIZE", help::kCap,
                            options, cap, chosen);
    add_pid(command, options.pid, "Process that runs under curb")->required();
    command->add_option("SIZE", options.size, "Its cap: 8GiB, 512MiB, 75% of the device");
    command->add_flag("--reset", options.reset, "Back to the cap of its policy");
    command->add_option("--gpu", options.gpu, "For this device alone; a key as in policies: cuda:0, nvml:1, GPU-8f3a")
        ->type_name("KEY");
    add_json(command, options.json);
}

void add_suspend(CLI::App &app, SuspendOptions &options, Chosen &chosen) {
    CLI::App *command = add(app, "suspend", "Move a whole process out of its GPUs into host memory", help::kSuspend,
                            options, suspend, chosen);
    add_pid(command, options.pid, "The process")->required();
    command->add_option("--timeout", options.timeout, "How long the process's submitted work may take to end [10s]")
        ->type_name("DURATION");
    command->add_flag("--force", options.force, "Go on where it is only guessed that it might go wrong");
    add_json(command, options.json);
}

void add_resume(CLI::App &app, ResumeOptions &options, Chosen &chosen) {
    CLI::App *command = add(app, "resume", "Bring a suspended process back", help::kResume, options, resume, chosen);
    add_pid(command, options.pid, "The process")->required();
    command->add_option("--wait", options.wait, "Wait so long for room on its GPUs: 30s, 10m")->type_name("DURATION");
    command->add_option("--bytes", options.bytes, "What it held of each GPU, if no record of that is left")
        ->type_name("SIZE");
    add_json(command, options.json);
}

void add_metrics(CLI::App &app, MetricsOptions &options, Chosen &chosen) {
    CLI::App *command = add(app, "metrics", "Print figures of processes and GPUs for Prometheus", help::kMetrics,
                            options, metrics, chosen);
    command->add_option("--textfile", options.textfile, "Write them to this file, for node_exporter's collector")
        ->type_name("FILE");
}

void add_doctor(CLI::App &app, DoctorOptions &options, Chosen &chosen) {
    CLI::App *command = add(app, "doctor", "Say what is wrong with this machine, or why a process is not capped",
                            help::kDoctor, options, doctor, chosen);
    add_pid(command, options.pid, "A process");
    add_json(command, options.json);
}

struct PolicyOptions {
    CheckOptions check;
    ShowOptions show;
    ExplainOptions explain;
};
void add_policy(CLI::App &app, PolicyOptions &options, Chosen &chosen) {
    CLI::App &policy = *app.add_subcommand("policy", "Work with policy files");
    policy.require_subcommand(1);
    policy.footer(help::kPolicy);
    const auto add_file = [](CLI::App *command, auto &file, bool &json) {
        add_json(command, json);
        return command->add_option("FILE", file, "Policy file; -: standard input");
    };
    auto &[check, show, explain] = options;
    add_file(add(policy, "check", "Say whether policies are valid, or every error and its place", help::kCheck, check,
                 policy_check, chosen),
             check.files, check.json)
        ->required();
    add_file(add(policy, "show", "Show every field, its value and its source", help::kShow, show, policy_show, chosen),
             show.file, show.json);
    add_file(add(policy, "explain",
                 "Say which rule a command would get, and why: curb policy explain [OPTIONS] [FILE] -- COMMAND...",
                 help::kExplain, explain, policy_explain, chosen),
             explain.file, explain.json);
    CLI::App *schema = policy.add_subcommand("schema", "Print the JSON Schema of policy files");
    schema->footer(help::kSchema);
    schema->callback([&] { chosen = policy_schema; });
}

void add_report(CLI::App &app, ReportOptions &options, Chosen &chosen) {
    CLI::App *command =
        add(app, "report", "Show a recorded run: a page, a picture, or lines", help::kReport, options, report, chosen);
    command->add_option("TRACE", options.trace, "Trace that a policy's \"trace\" has written; -: standard input")
        ->required();
    command->add_option("-o,--output", options.output, "Write this file: .html (a page) or .svg (a picture)")
        ->type_name("FILE");
    add_json(command, options.json);
}

void add_replay(CLI::App &app, ReplayOptions &options, Chosen &chosen) {
    CLI::App *command = add(app, "replay", "Say what another policy would have done to a recorded run", help::kReplay,
                            options, replay, chosen);
    command->add_option("TRACE", options.trace, "Trace, as of curb report")->required();
    command->add_option("--policy", options.policy, "Policy file; -: standard input")->type_name("FILE");
    command->add_option("--cap", options.cap, "Ceiling of GPU memory on each device: 8GiB, 512MiB, 75%")
        ->type_name("SIZE");
    add_json(command, options.json);
}

int dispatch(const Words &words) {
    CLI::App app("Keeps a process's GPU memory within a policy, without changing the process.", "curb");
    app.formatter(std::make_shared<HelpFormat>());
    app.footer(help::kExamples);
    app.set_version_flag("--version", "curb " CURB_VERSION);
    app.require_subcommand(1);
    Chosen chosen;
    struct {
        RunOptions run;
        PsOptions ps;
        ReleaseOptions release;
        CapOptions cap;
        PolicyOptions policy;
        SuspendOptions suspend;
        ResumeOptions resume;
        ReportOptions report;
        ReplayOptions replay;
        MetricsOptions metrics;
        DoctorOptions doctor;
    } options;
    const CLI::App *run_command = add_run(app, options.run, chosen);
    add_ps(app, options.ps, chosen);
    add_release(app, options.release, chosen);
    add_cap(app, options.cap, chosen);
    add_policy(app, options.policy, chosen);
    add_suspend(app, options.suspend, chosen);
    add_resume(app, options.resume, chosen);
    add_report(app, options.report, chosen);
    add_replay(app, options.replay, chosen);
    add_metrics(app, options.metrics, chosen);
    add_doctor(app, options.doctor, chosen);

    Split parts{words, {}};
    if (!words.empty() && words.front() == "run") parts = split(words, *run_command);
    if (words.size() > 1 && words[0] == "policy" && words[1] == "explain") parts = split_at_dashes(words);
    options.run.command = options.policy.explain.command = parts.command;
    std::reverse(parts.ours.begin(), parts.ours.end());  // as CLI11 wants them
    try {
        app.parse(std::move(parts.ours));
    } catch (const CLI::ParseError &error) {
        if (error.get_exit_code() != 0) return refuse(app, words, error.what());
        std::ostringstream answer;  // to --help or --version
        app.exit(error, answer);
        print(answer.str());
        return 0;
    }
    if (!parts.clear) {
        complain("run: '" + parts.command.front() + "' stands before --, so it is unclear where the command begins");
        complain("write -- once, right before the command: curb run [OPTIONS] -- COMMAND");
        return kFailure;
    }
    return chosen();
}

}  // namespace

namespace {

// Opens the standard descriptors that are closed, so that a read or write of them fails: else a socket or the driver's
// file would get the number, and our answer with it. A program that curb becomes finds them closed.
void reserve_standard_descriptors() {
    for (const int standard : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
        if (::fcntl(standard, F_GETFD) >= 0) continue;
        // The lowest that is free, which is this one.
        static_cast<void>(::open("/dev/null", (standard == STDIN_FILENO ? O_WRONLY : O_RDONLY) | O_CLOEXEC));
    }
}

}  // namespace

void complain(std::string_view message) {
    std::string text = "curb: ";
    for (std::size_t at = 0; at <= message.size();) {  // there are messages of several lines
        const std::string_view line = message.substr(at, message.find('\n', at) - at);
        text += policy::plain(line) + "\n";
        at += line.size() + 1;
    }
    std::fputs(text.c_str(), stderr);
}

}  // namespace curb::cli

int main(int argc, char **argv) {
    try {
        curb::cli::reserve_standard_descriptors();
        const int status = curb::cli::dispatch({argv + std::min(argc, 1), argv + argc});
        curb::cli::print("");  // all that is still buffered: an answer that cannot be written is a failure
        return status;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "curb: %s\n", error.what());
        return curb::cli::kFailure;
    }
}
