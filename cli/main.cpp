// What is typed -> one call of commands.hpp.
//
// The command of `curb run` or `curb policy explain` never passes through CLI11, whose options would be looked for in
// it: argv is split first, at the first `--` or, for `run` without one, at the first word that is neither an option of
// ours nor its value.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <functional>

#include "commands.hpp"

namespace curb::cli {
namespace {

constexpr const char *kExamples = R"(
Examples:
  curb run --cap 8GiB -- python train.py      hold the program to 8 GiB of each GPU
  curb run --policy job.json -- ./train.sh    a policy that can be edited while it runs
  curb run --sim --cap 1GiB -- ./a.out        try it without a GPU
  curb policy check job.json                  every error of a policy file, with its place
  curb policy show                            the policy of this environment, and where each value comes from
  curb policy explain job.json -- ./train.sh  which rule of the policy a command would get, and why
  curb release PID                            make a program give back memory that it caches
  kill -USR1 PID                              the same, without an answer
  curb suspend PID; curb resume PID           a whole process out to host memory, and back

Without `curb run`: LD_PRELOAD=/path/to/libcurb.so CURB_POLICY=job.json COMMAND)";

constexpr const char *kRunFooter = R"(
The command replaces curb: same pid, signals and exit status. 125: curb itself failed (a policy that cannot be used,
a library that is not there), 126: the command cannot be executed, 127: there is no such command.

Without --policy: CURB_POLICY, else $XDG_CONFIG_HOME/curb/policy.json if it is there. Without --cap: CURB_CAP.
/etc/curb/policy.json is a ceiling that no policy can lift. See curb policy show --help.)";

constexpr const char *kReleaseFooter = R"(
What a process and its frameworks cache is given back to the device; what they use stays. It takes as long as the
program keeps Python's lock. Ctrl-C ends the waiting, not the release. Processes are those of this user (of all users,
for root) that have used CUDA under curb.

Exit status 0: all have answered, also if there was nothing to give back; 1: some could not be asked.

Examples:
  curb release 4711
  curb release --all --json                   one answer a process
  curb release 4711 --bytes 2GiB              steps are taken until so much is back
  curb release 4711 --step pools              that step alone)";

constexpr const char *kPolicyFooter = R"(
docs/POLICY.md describes every field; curb policy schema prints the same for editors.)";

constexpr const char *kCheckFooter = R"(
Exit status 0: all are valid, 1: some are not, 2: some cannot be read.
Fields that are right but have no effect in this version are noted on standard error.

Examples:
  curb policy check job.json
  curb policy check --json *.json             one answer a line
  generate-policy | curb policy check -)";

constexpr const char *kShowFooter = R"(
Each field has its value and where it comes from: "default", a place in a file, CURB_CAP. What the machine's ceiling
(/etc/curb/policy.json) says of the same field stands beside it; on a device the lower of two caps holds.
Without FILE: CURB_POLICY, else $XDG_CONFIG_HOME/curb/policy.json. Rules are listed, but none is applied: which one a
command gets, curb policy explain says. Exit status as of curb policy check.

Examples:
  curb policy show job.json
  CURB_CAP=8GiB curb policy show              what a program would get that is started here)";

constexpr const char *kExplainFooter = R"(
The command is not run. It is taken as the kernel would take it: found in PATH, symbolic links followed, of a script the
interpreter. Every rule is held against it, and what comes of the policy is shown as by curb policy show, with the
environment variables that would be set. Without FILE: as curb policy show. Exit status as of curb policy check.

Examples:
  curb policy explain job.json -- python train_bert.py --lr 1e-4
  SLURM_JOB_NAME=bert curb policy explain --json job.json -- ./train.sh)";

constexpr const char *kSuspendFooter = R"(
The process keeps its pid, files and host memory; its CUDA calls wait until curb resume. All that it holds of its GPUs goes
to host memory, but for a few MiB. Takes a driver of 570 or newer and the process's user, or root. Refused: MIG, MPS,
managed memory, one process of several that work together, too little host memory. --force goes on where it is only
guessed that it might go wrong: managed memory of a process that is not under curb, a launcher's variables without NCCL,
XLA (JAX, TensorFlow), whose threads were seen to crash in the middle of training (2 of 14).

Exit status 0: suspended, 1: not, and it runs as before, 2: in a state that standard error tells of, 130: not, because of
Ctrl-C. Once memory is on its way out, Ctrl-C does not stop it.

Examples:
  curb suspend 4711
  curb suspend --json 4711 | jq .bytes)";

constexpr const char *kResumeFooter = R"(
Refused while a GPU has less room than the process held there: the driver would wedge it for good. Others who take that
room at the same moment cannot be kept out. A process that was left locked by a suspend that was cut short is unlocked.

Exit status 0: it runs, 1: not, and it is as before, 2: in a state that standard error tells of, 130: not, because of
Ctrl-C.

Examples:
  curb resume 4711
  curb resume --wait 10m 4711                 as soon as there is room
  curb resume --bytes 8GiB 4711               when the record of what it held is lost)";

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

// What was asked for, once all of it has been read.
using Chosen = std::function<int()>;

CLI::App *add_run(CLI::App &app, RunOptions &options, Chosen &chosen) {
    CLI::App *command = app.add_subcommand("run", "Run a command under a policy: curb run [OPTIONS] -- COMMAND...");
    command->footer(kRunFooter);
    command->add_option("--cap", options.cap, "Ceiling of GPU memory on each device: 8GiB, 512MiB, 75%")
        ->type_name("SIZE");
    command->add_option("--policy", options.policy, "Policy file")->type_name("FILE");
    command->add_flag("--sim", options.sim, "Use the simulated driver: no GPU is needed or touched");
    command->add_flag("--dry-run", options.dry_run, "Print what would be set and run, and stop");
    command->callback([&] { chosen = [&] { return run(options); }; });
    return command;
}

// A subcommand of `curb policy` that reads one file or several and answers programs too.
template <class File, class Options>
CLI::Option *add_reader(CLI::App &policy, const char *name, const char *what, const char *footer, File Options::*file,
                        Options &options, int (*body)(const Options &), Chosen &chosen) {
    CLI::App *command = policy.add_subcommand(name, what);
    command->footer(footer);
    command->add_flag("--json", options.json, "Machine-readable answer on standard output");
    command->callback([&chosen, &options, body] { chosen = [&options, body] { return body(options); }; });
    return command->add_option("file", options.*file, "Policy file; -: standard input")->type_name("FILE");
}

void add_release(CLI::App &app, ReleaseOptions &options, Chosen &chosen) {
    CLI::App *command = app.add_subcommand("release", "Make processes give back memory that they cache");
    command->footer(kReleaseFooter);
    command->add_option("pid", options.pids, "Process that runs under curb")->type_name("PID");
    command->add_flag("--all", options.all, "All processes that can be asked");
    command->add_option("--bytes", options.bytes, "So much is enough: 2GiB, 512MiB")->type_name("SIZE");
    command->add_option("--step", options.steps, "Take this step instead of the policy's; several in the order given")
        ->type_name("NAME")
        ->expected(1)
        ->take_all();
    command->add_flag("--json", options.json, "Machine-readable answer on standard output");
    command->callback([&] { chosen = [&] { return release(options); }; });
}

void add_suspend(CLI::App &app, SuspendOptions &options, Chosen &chosen) {
    CLI::App *command = app.add_subcommand("suspend", "Move a whole process out of its GPUs into host memory");
    command->footer(kSuspendFooter);
    command->add_option("pid", options.pid, "The process")->type_name("PID")->required()->check(CLI::PositiveNumber);
    command->add_option("--timeout", options.timeout, "How long the process's submitted work may take to end [10s]")
        ->type_name("DURATION");
    command->add_flag("--force", options.force, "Go on where it is only guessed that it might go wrong");
    command->add_flag("--json", options.json, "Machine-readable answer on standard output");
    command->callback([&] { chosen = [&] { return suspend(options); }; });
}

void add_resume(CLI::App &app, ResumeOptions &options, Chosen &chosen) {
    CLI::App *command = app.add_subcommand("resume", "Bring a suspended process back");
    command->footer(kResumeFooter);
    command->add_option("pid", options.pid, "The process")->type_name("PID")->required()->check(CLI::PositiveNumber);
    command->add_option("--wait", options.wait, "Wait so long for room on its GPUs: 30s, 10m")->type_name("DURATION");
    command->add_option("--bytes", options.bytes, "What it held of each GPU, if no record of that is left")
        ->type_name("SIZE");
    command->add_flag("--json", options.json, "Machine-readable answer on standard output");
    command->callback([&] { chosen = [&] { return resume(options); }; });
}

struct PolicyOptions {
    CheckOptions check;
    ShowOptions show;
    ExplainOptions explain;
};
void add_policy(CLI::App &app, PolicyOptions &options, Chosen &chosen) {
    CLI::App &policy = *app.add_subcommand("policy", "Work with policy files");
    policy.require_subcommand(1);
    policy.footer(kPolicyFooter);
    add_reader(policy, "check", "Say whether policies are valid, or every error and its place", kCheckFooter,
               &CheckOptions::files, options.check, policy_check, chosen)
        ->required();
    add_reader(policy, "show", "Show every field, its value and its source", kShowFooter, &ShowOptions::file,
               options.show, policy_show, chosen);
    add_reader(policy, "explain",
               "Say which rule a command would get, and why: curb policy explain [FILE] -- COMMAND...", kExplainFooter,
               &ExplainOptions::file, options.explain, policy_explain, chosen);
    policy.add_subcommand("schema", "Print the JSON Schema of policy files")->callback([&] { chosen = policy_schema; });
}

int dispatch(const Words &words) {
    CLI::App app("Keeps a process's GPU memory within a policy, without changing the process.", "curb");
    app.footer(kExamples);
    app.set_version_flag("--version", "curb " CURB_VERSION);
    app.require_subcommand(1);
    Chosen chosen;
    RunOptions run_options;
    const CLI::App *run_command = add_run(app, run_options, chosen);
    ReleaseOptions release_options;
    add_release(app, release_options, chosen);
    PolicyOptions policy_options;
    add_policy(app, policy_options, chosen);

    SuspendOptions suspend_options;
    add_suspend(app, suspend_options, chosen);
    ResumeOptions resume_options;
    add_resume(app, resume_options, chosen);

    Split parts{words, {}};
    if (!words.empty() && words.front() == "run") parts = split(words, *run_command);
    if (words.size() > 1 && words[0] == "policy" && words[1] == "explain") parts = split_at_dashes(words);
    run_options.command = policy_options.explain.command = parts.command;
    std::reverse(parts.ours.begin(), parts.ours.end());  // as CLI11 wants them
    try {
        app.parse(std::move(parts.ours));
    } catch (const CLI::ParseError &error) {
        if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
        complain(error.what());
        complain("see curb --help, curb run --help, curb release --help, curb policy show --help");
        return kFailure;
    }
    if (!parts.clear) {
        complain("run: '" + parts.command.front() + "' stands before --, so it is unclear where the command begins");
        complain("write -- once, right before the command: curb run [OPTIONS] -- COMMAND");
        return kFailure;
    }
    return chosen();
}

}  // namespace

void complain(std::string_view message) {
    std::fprintf(stderr, "curb: %.*s\n", static_cast<int>(message.size()), message.data());
}

}  // namespace curb::cli

int main(int argc, char **argv) {
    try {
        return curb::cli::dispatch({argv + std::min(argc, 1), argv + argc});
    } catch (const std::exception &error) {
        std::fprintf(stderr, "curb: %s\n", error.what());
        return curb::cli::kFailure;
    }
}
