// What is typed -> one call of commands.hpp.
//
// The command of `curb run` never passes through CLI11, whose options would be looked for in it: argv is split first,
// at the first `--` or, without one, at the first word that is neither an option of ours nor its value.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>

#include "commands.hpp"

namespace curb::cli {
namespace {

constexpr const char *kExamples = R"(
Examples:
  curb run --cap 8GiB -- python train.py      hold the program to 8 GiB of each GPU
  curb run --policy job.json -- ./train.sh    a policy that can be edited while it runs
  curb run --sim --cap 1GiB -- ./a.out        try it without a GPU
  curb policy check job.json                  every error of a policy file, with its place
  kill -USR1 PID                              make a program give back memory that it caches

Without `curb run`: LD_PRELOAD=/path/to/libcurb.so CURB_POLICY=job.json COMMAND)";

constexpr const char *kRunFooter = R"(
The command replaces curb: same pid, signals and exit status. 125: curb itself failed (a policy that cannot be used,
a library that is not there), 126: the command cannot be executed, 127: there is no such command.

Without --policy: CURB_POLICY, else $XDG_CONFIG_HOME/curb/policy.json if it is there. Without --cap: CURB_CAP.)";

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

Split split(const Words &words, const CLI::App &run) {
    const auto begin = command_begin(words, run);
    if (begin == words.end()) return {words, {}};
    const bool dashes = *begin == "--";
    const bool clear = dashes || std::find(begin, words.end(), "--") == words.end();
    return {{words.begin(), begin}, {begin + (dashes ? 1 : 0), words.end()}, clear};
}

int dispatch(const Words &words) {
    CLI::App app("Keeps a process's GPU memory within a policy, without changing the process.", "curb");
    app.footer(kExamples);
    app.set_version_flag("--version", "curb " CURB_VERSION);
    app.require_subcommand(1);

    RunOptions run_options;
    CLI::App *run_command = app.add_subcommand("run", "Run a command under a policy: curb run [OPTIONS] -- COMMAND...");
    run_command->footer(kRunFooter);
    run_command->add_option("--cap", run_options.cap, "Ceiling of GPU memory on each device: 8GiB, 512MiB, 75%")
        ->type_name("SIZE");
    run_command->add_option("--policy", run_options.policy, "Policy file")->type_name("FILE");
    run_command->add_flag("--sim", run_options.sim, "Use the simulated driver: no GPU is needed or touched");
    run_command->add_flag("--dry-run", run_options.dry_run, "Print what would be set and run, and stop");

    CheckOptions check_options;
    CLI::App *policy_command = app.add_subcommand("policy", "Work with policy files");
    policy_command->require_subcommand(1);
    CLI::App *check_command = policy_command->add_subcommand("check", "Say whether a policy is valid, or every error");
    check_command->add_option("file", check_options.file, "Policy file; -: standard input")
        ->required()
        ->type_name("FILE");
    check_command->add_flag("--json", check_options.json, "Machine-readable answer on standard output");
    check_command->footer("\nExit status 0: valid, 1: not.");

    Split parts{words, {}};
    if (!words.empty() && words.front() == "run") parts = split(words, *run_command);
    run_options.command = parts.command;
    std::reverse(parts.ours.begin(), parts.ours.end());  // as CLI11 wants them
    try {
        app.parse(std::move(parts.ours));
    } catch (const CLI::ParseError &error) {
        if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
        complain(error.what());
        complain("see curb --help, curb run --help, curb policy check --help");
        return kFailure;
    }
    if (!parts.clear) {
        complain("run: '" + parts.command.front() + "' stands before --, so it is unclear where the command begins");
        complain("write -- once, right before the command: curb run [OPTIONS] -- COMMAND");
        return kFailure;
    }
    if (run_command->parsed()) return run(run_options);
    return policy_check(check_options);
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
