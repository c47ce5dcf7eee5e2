// `curb run`: checks everything that can go wrong, then executes the program in its place. Of all that the program
// inherits (signal handlers and masks, descriptors) it changes only the environment.
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <sstream>
#include <string_view>
#include <utility>

#include "command/command.hpp"
#include "commands/limit_options.hpp"
#include "config/load.hpp"
#include "machine/libraries.hpp"
#include "policies/policy_rows.hpp"
#include "policies/subject.hpp"
#include "policy/flags.hpp"
#include "policy/steer.hpp"
#include "policy/values/words.hpp"
#include "terminal/format.hpp"
#include "terminal/messages.hpp"
#include "terminal/terminal.hpp"

namespace curb::cli {
namespace {

namespace fs = std::filesystem;

struct RunOptions : StartOptions {
    bool dry_run = false;
    std::vector<std::string> command;

    void declare(Options &takes) {
        StartOptions::declare(takes);
        takes.flag("--dry-run", dry_run, "Print what would be set and run, and the policy that results; then stop");
        takes.rest(command, Rest::at_first_word);
    }
};

// The variables that curb sets, in the order in which --dry-run prints them.
using Settings = std::vector<std::pair<std::string, std::string>>;

// Returns `name` (CURB_CAP, CURB_JOB_CAP) for the program: its present value, which an outer curb run may have set, and
// each cap of `option`. Warns of caps without effect: the lowest is in force. Precondition: each cap is valid.
std::string cap_with(const char *option, const std::vector<std::string> &caps, const char *name) {
    const std::string outer = variable(name);
    if (caps.empty() || (!outer.empty() && !policy::parse_caps(outer))) return outer;
    const auto all_but = [&](const std::string *one) {
        std::vector<std::string> all;
        if (!outer.empty()) all.push_back(outer);
        for (const std::string &cap : caps)
            if (&cap != one) all.push_back(cap);
        return all.empty() ? std::string() : policy::format(policy::parse_caps(policy::joined(all, ",")).value());
    };
    const std::string all = all_but(nullptr);
    for (const std::string &cap : caps)
        if (all_but(&cap) == all)
            say::warning(fmt::format("{} {} has no effect: ", option, cap) +
                         (outer.empty() ? "of several caps the lowest holds"
                                        : fmt::format("{} is {} already, and the lower holds", name, outer)));
    return all;
}

// The value of a variable, and the place to name if it is wrong.
struct Setting {
    std::string text;
    const char *place;
};
// The variables of curb that options set, by name.
using Overrides = std::map<std::string, Setting>;

policy::Result<Overrides, std::string> overrides_of(const RunOptions &options) {
    if (auto fault = options.fault()) return *fault;
    Overrides out;
    const auto add_caps = [&](const char *option, const std::vector<std::string> &caps, const char *name) {
        if (!caps.empty()) out[name] = {cap_with(option, caps, name), name};
    };
    add_caps("--cap", options.caps, "CURB_CAP");
    add_caps("--job-cap", options.job_caps, "CURB_JOB_CAP");
    if (options.policy) out["CURB_POLICY"] = {*options.policy, "--policy"};
    for (const policy::FlagRow &row : policy::flags()) {
        auto text = options.value_of(row.flag);
        if (row.flag == policy::Flag::steer && options.steer) text = "1";
        if (!text) continue;
        if (row.flag == policy::Flag::trace && text->find("%p") == std::string::npos &&
            ::access(text->c_str(), F_OK) == 0)
            return "--trace: " + policy::quote(*text) +
                   " exists, and a trace begins with a new file; remove it, or write %p in the name, which becomes the "
                   "pid";
        out[row.variable] = {*text, row.option};
    }
    return out;
}

// Returns the environment that the program will have.
Environment environment_with(const Overrides &overrides) {
    return [&](const char *name) -> const char * {
        const auto set = overrides.find(name);
        return set == overrides.end() ? std::getenv(name) : set->second.text.c_str();
    };
}

// True if the kernel gives the program privileges that this process does not have. The loader then ignores LD_PRELOAD
// (AT_SECURE, ld.so(8)).
bool gains_rights(const std::string &file) {
    struct stat status {};
    if (::stat(file.c_str(), &status) != 0 || is_mounted(file, ST_NOSUID) ||
        ::prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1)
        return false;
    if ((status.st_mode & S_ISUID) != 0 && status.st_uid != ::getuid()) return true;
    constexpr mode_t kSetGroup = S_ISGID | S_IXGRP;
    if ((status.st_mode & kSetGroup) == kSetGroup && status.st_gid != ::getgid()) return true;
    return ::getuid() != 0 && ::getxattr(file.c_str(), "security.capability", nullptr, 0) > 0;
}

// True for the dynamic loader itself: started as a program it honours LD_PRELOAD, although it names no interpreter.
bool is_loader(const std::string &file) {
    const std::string_view name = policy::file_name(file);
    return name.starts_with("ld-") || name == "ld.so";
}

// Returns why the loader will not load `library` into `file`. nullopt if it will, or if `file` cannot be read.
std::optional<std::string> why_out_of_reach(const std::string &file, const fs::path &library) {
    constexpr const char *kUncapped = ", so it runs without curb";
    const std::string name = policy::quote(file);
    const auto program = read_elf(file), ours = read_elf(library.string());
    if (!program) return std::nullopt;
    if (is_mounted(library.string(), ST_NOEXEC))
        return fmt::format(
            "{} lies on a file system that is mounted noexec, so the loader cannot load it, and {} runs "
            "without curb; install curb on another one",
            library.string(), name);
    if (program->is_static() && !is_loader(file))
        return fmt::format(
            "{} is statically linked{}; of what it starts, programs that are linked dynamically are under "
            "curb",
            name, kUncapped);
    if (program->uses_musl()) return name + " uses musl as its libc, and libcurb.so needs glibc" + kUncapped;
    if (ours && !same_architecture(*ours, *program))
        return fmt::format("{} is for {}, and libcurb.so for {}{}", name, architecture_of(*program),
                           architecture_of(*ours), kUncapped);
    if (gains_rights(file))
        return name +
               " has rights of its own (set-user-ID, set-group-ID or capabilities), so the loader does not load "
               "libcurb.so into it: it and what it starts run without curb; put curb run behind it, as in sudo "
               "curb run -- COMMAND";
    return std::nullopt;
}

// Warns if the loader will not load libcurb.so into the program. False if --strict forbids to start it then.
bool can_be_reached(const RunOptions &options, const std::string &file) {
    const auto library = find_library();
    const auto why = library ? why_out_of_reach(file, *library) : std::nullopt;  // settings() reports a missing library
    if (why && options.strict) say::error(*why + "; --strict forbids that");
    if (why && !options.strict) say::warning(*why);
    return !why || !options.strict;
}

// Reads the policies of the program. Prints all errors and returns nullopt if there are any.
std::optional<config::Reading> load(const config::Source &source, const Overrides &overrides) {
    auto reading = config::read(source);
    if (reading) return std::move(reading).value();
    for (config::Diagnostic diagnostic : reading.error()) {
        if (const auto set = overrides.find(diagnostic.file); set != overrides.end())
            diagnostic.file = set->second.place;
        say::error(diagnostic.text());
    }
    return std::nullopt;
}

policy::Result<Settings, std::string> settings(const config::Source &source, const RunOptions &options,
                                               const Overrides &overrides, const policy::Policy &policy) {
    Settings out;
    for (const auto &[name, setting] : overrides)
        if (name != "CURB_POLICY") out.emplace_back(name, setting.text);
    // Also for a program that curb does not reach: curb may reach the programs that it starts.
    if (policy::has_job_cap(policy) && *policy.job.of == policy::JobOf::tree && source.job.empty())
        out.emplace_back("CURB_JOB", config::new_tree());
    if (options.policy || !variable("CURB_POLICY").empty()) out.emplace_back("CURB_POLICY", source.file);

    // Puts the path in front of the variable's value.
    const auto prepend = [&](const char *name, const std::string &path) {
        const std::string rest = variable(name);
        out.emplace_back(name, rest.empty() ? path : path + ":" + rest);
    };
    const auto library = find_library();
    if (!library) return library.error();
    if (auto error = not_carried(*library, "LD_PRELOAD", kPreloadSeparators)) return *error;
    prepend("LD_PRELOAD", library->native());
    if (!options.sim) return out;
    const auto sim = find_sim();
    if (!sim) return sim.error();
    if (auto error = not_carried(*sim, "LD_LIBRARY_PATH", kLibraryPathSeparators)) return *error;
    prepend("LD_LIBRARY_PATH", sim->native());
    say::hint("a simulated driver is used, " + sim->native() + "; no GPU is touched");
    return out;
}

// Prints the variables, the command, and the policy as comments, so that a shell can run the answer.
void show(const Settings &settings, const std::vector<std::string> &command, std::vector<Row> policy) {
    std::string out;
    for (const auto &[name, value] : settings) out += name + "=" + shell_quoted(value) + "\n";
    out += policy::joined(command, " ", shell_quoted) + "\n";
    std::erase_if(policy, is_default);
    std::istringstream lines(policy.empty() ? "no policy: curb only watches\n" : text(policy));
    for (std::string line; std::getline(lines, line);) out += "# " + line + "\n";
    print(out);
}

// Executes the command in place of this process. Returns the exit status if that fails.
int become(const std::vector<std::string> &command) {
    std::vector<char *> words;
    words.reserve(command.size() + 1);
    for (const std::string &word : command) words.push_back(const_cast<char *>(word.c_str()));
    words.push_back(nullptr);
    ::execvp(words.front(), words.data());
    const int error = errno;
    const std::string name = "'" + policy::one_line(command.front()) + "'";
    if (error != ENOENT) return failed(name + " cannot be executed: " + std::strerror(error), kNotExecutable);
    if (command.front().find('/') != std::string::npos && ::access(command.front().c_str(), F_OK) == 0)
        return failed(name + " cannot be executed: the interpreter that it names is not there", kNotExecutable);
    return failed(name + " was not found", kNotFound);
}

int run(const RunOptions &options) {
    if (options.quiet) say::only_errors();
    if (options.command.empty()) {
        say::error("there is no command to run");
        return failed(
            "usage: curb run [OPTIONS] -- COMMAND [ARGUMENTS...], as in: curb run --cap 8GiB -- python train.py");
    }
    const auto overrides = overrides_of(options);
    if (!overrides) return failed(overrides.error());
    const Environment variables = environment_with(*overrides);
    const config::Source source = config::locate(variables);
    const Program program = program_of(options.command, variables);
    if (!source.file.empty()) say::detail("reads the policy " + source.file);
    const auto reading = load(source, *overrides);
    if (!reading) return kFailure;
    const config::Outcome outcome = config::outcome(*reading, who_is(program, variables));
    if (const policy::TracePolicy &trace = outcome.policy.trace; trace.stacks && trace.file.value_or("").empty())
        say::warning("call stacks have no effect without a trace: add --trace FILE");
    auto environment = settings(source, options, *overrides, outcome.policy);
    if (!environment) return failed(environment.error());
    if (program.fault.empty() && !can_be_reached(options, program.file)) return kFailure;
    // The variables of a policy come last. None of them has the name of one of curb's.
    for (auto &steering : policy::variables_to_set(outcome.policy, variables))
        environment.value().push_back(std::move(steering));
    if (options.dry_run) {
        show(*environment, options.command, rows(*reading, outcome, source));
        return 0;
    }
    for (const auto &[name, value] : *environment) {
        if (::setenv(name.c_str(), value.c_str(), 1) != 0)
            return failed(name + " cannot be set: " + std::strerror(errno));
        say::detail("sets " + name + "=" + value);
    }
    say::detail("runs " + policy::joined(options.command, " ", shell_quoted));
    return become(options.command);
}

}  // namespace

extern const Command kRun{
    .name = "run",
    .line = "Run a command under a policy",
    .usage = "curb run [OPTIONS] -- COMMAND...",
    .help = R"(
The command replaces curb: same pid, signals and exit status. 125: curb itself failed (a policy that cannot be used,
a library that is not there), 126: the command cannot be executed, 127: there is no such command.

A program that is statically linked or has rights of its own (set-user-ID) runs without curb, and so does every program
if libcurb.so lies on a noexec mount. curb run warns, and then starts it; with --strict it does not, and returns 125.

Without --policy: CURB_POLICY, else $XDG_CONFIG_HOME/curb/policy.json if it is there. Of several caps, also of CURB_CAP,
of the policy and of an outer curb run, the lowest that names a GPU holds: --cap 25%,6GiB --cap cuda:1=4GiB. The
options from --growth to --log override the policy. Each is a variable too: CURB_KEEP_FREE for --keep-free, CURB_STEER=1.
/etc/curb/policy.json is a ceiling that neither policy nor options can exceed. See curb policy show --help.

--job-cap (CURB_JOB_CAP) is one cap for the command and all that it starts: what any of them holds counts. An inner curb
run stays in the job (CURB_JOB) and can only lower the cap.

--sim serves programs that call libcuda themselves; the CUDA runtime (PyTorch, what nvcc links) needs a real driver.

Examples:
  curb run --cap 8GiB -- python train.py      no more than 8 GiB of each GPU, the context included
  curb run --cap 8GiB --growth 2GiB:1GiB:10s --wait 30s -- ./train.sh    a small start, and more when it is needed
  curb run --job-cap 16GiB -- torchrun x.py   16 GiB of each GPU for all workers together
  curb run --log info --trace run-%p.json -- ./train.sh    see what curb does, and record it for curb report
  curb run --policy job.json -- ./train.sh    job.json may be edited while it runs
  curb run --dry-run --cap 75% -- ./train.sh  what would be set and run
  curb run --sim --cap 1GiB -- ./a.out        on a simulated GPU)",
    .takes = takes<RunOptions, run>,
};

}  // namespace curb::cli
