// `curb run`: finds everything that can go wrong, then becomes the program. It changes nothing that the program
// inherits except the environment: no handler, no mask, no open descriptor.
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <utility>

#include "command.hpp"
#include "config/load.hpp"
#include "libraries.hpp"
#include "policy/size.hpp"
#include "policy/steer.hpp"
#include "policy/words.hpp"
#include "subject.hpp"
#include "terminal.hpp"

namespace curb::cli {
namespace {

namespace fs = std::filesystem;

struct RunOptions {
    std::optional<std::string> cap, job_cap, policy;
    bool strict = false;  // a program that cannot be put under curb is not started
    bool sim = false, dry_run = false;
    std::vector<std::string> command;

    void declare(Options &takes) {
        takes.option("--cap", cap, "SIZE", "Ceiling of GPU memory on each device: 8GiB, 512MiB, 75%");
        takes.option("--job-cap", job_cap, "SIZE", "Ceiling on each device for all processes that it starts, together");
        takes.option("--policy", policy, "FILE", "Policy file");
        takes.flag("--strict", strict, "Fail if curb cannot come into the program, instead of warning");
        takes.flag("--sim", sim, "Use the simulated driver: no GPU is needed or touched");
        takes.flag("--dry-run", dry_run, "Print what would be set and run, and stop");
        takes.rest(command, Rest::at_first_word);
    }
};

// The variables that curb sets, in the order in which --dry-run prints them.
using Settings = std::vector<std::pair<std::string, std::string>>;

// A cap as the program will have it: the lower of the option and the variable's present value, which another curb run
// may have set.
struct Cap {
    const char *option, *variable;
    std::optional<std::string> text{};  // nothing: as it is
    const char *place = variable;       // where it was written, if it is wrong
};
Cap cap_with(const char *option, const char *name, const std::optional<std::string> &given) {
    Cap out{.option = option, .variable = name};
    if (!given) return out;
    const std::string outer = variable(name);
    out.text = given;
    out.place = option;
    if (outer.empty() || !policy::parse_lowest(*given)) return out;
    const auto there = policy::parse_lowest(outer), both = policy::parse_lowest(outer + "," + *given);
    out.place = name;
    out.text = there ? policy::format(*both) : outer;
    if (there && *both == *there)
        complain(std::string(option) + " " + *given + " has no effect: " + name + " is " + policy::format(*there) +
                 " already, and the lower holds");
    return out;
}
struct Caps {
    explicit Caps(const RunOptions &options)
        : own(cap_with("--cap", "CURB_CAP", options.cap)),
          job(cap_with("--job-cap", "CURB_JOB_CAP", options.job_cap)) {}
    Cap own, job;
};

// The environment as the program will have it, with the options in place of the variables that they set.
Environment environment_with(const RunOptions &options, const Caps &caps) {
    return [&](const char *name) -> const char * {
        for (const Cap *cap : {&caps.own, &caps.job})
            if (cap->text && std::strcmp(name, cap->variable) == 0) return cap->text->c_str();
        if (options.policy && std::strcmp(name, "CURB_POLICY") == 0) return options.policy->c_str();
        return std::getenv(name);
    };
}

// Returns the policy files that the program will find.
policy::Result<config::Source, std::string> locate(const RunOptions &options, const Environment &environment) {
    if (options.cap && options.cap->empty()) return "--cap: " + policy::parse_size("").error();
    if (options.job_cap && options.job_cap->empty()) return "--job-cap: " + policy::parse_size("").error();
    if (options.policy && options.policy->empty()) return std::string("--policy: the path is empty; name a file");
    return config::locate(environment);
}

bool is_mounted(const std::string &path, unsigned long how) {
    struct statvfs system {};
    return ::statvfs(path.c_str(), &system) == 0 && (system.f_flag & how) != 0;
}

// True if the kernel gives the program rights that this process does not have. The loader then ignores LD_PRELOAD
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

// The loader itself, started as a program, loads preloads although it names no interpreter.
bool is_loader(const std::string &file) {
    const std::string_view name = std::string_view(file).substr(file.rfind('/') + 1);
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
    if (program->interpreter.empty() && !is_loader(file))
        return fmt::format(
            "{} is statically linked{}; of what it starts, programs that are linked dynamically are under "
            "curb",
            name, kUncapped);
    if (program->interpreter.find("/ld-musl-") != std::string::npos)
        return name + " uses musl as its libc, and libcurb.so needs glibc" + kUncapped;
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

// Warns if the loader will not load libcurb.so into the program. Returns false if --strict then forbids to start it.
bool can_be_reached(const RunOptions &options, const std::string &file) {
    const auto library = find_library();
    const auto why = library ? why_out_of_reach(file, *library) : std::nullopt;  // settings() reports a missing library
    if (why) complain(*why + (options.strict ? "; --strict forbids that" : ""));
    return !why || !options.strict;
}

// Returns the policy of the program. Prints every error and returns nullopt if it has any.
std::optional<policy::Policy> load(const config::Source &source, const Program &program, const Caps &caps,
                                   const Environment &environment) {
    auto loaded = config::load(source, who_is(program, environment));
    if (loaded) return std::move(loaded).value().policy;
    for (config::Diagnostic diagnostic : loaded.error()) {
        for (const Cap *cap : {&caps.own, &caps.job})
            if (diagnostic.file == cap->variable) diagnostic.file = cap->place;
        complain(diagnostic.text());
    }
    return std::nullopt;
}

policy::Result<Settings, std::string> settings(const config::Source &source, const RunOptions &options,
                                               const Caps &caps, const policy::Policy &policy) {
    Settings out;
    for (const Cap *cap : {&caps.own, &caps.job})
        if (cap->text) out.emplace_back(cap->variable, *cap->text);
    // Programs that curb does not reach are of the job too: what they start may be reached.
    if (policy::has_job_cap(policy) && *policy.job.of == policy::JobOf::tree && source.job.empty())
        out.emplace_back("CURB_JOB", config::new_tree());
    if (options.policy || !variable("CURB_POLICY").empty()) out.emplace_back("CURB_POLICY", source.file);

    // Puts the path before the value that the variable has.
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
    complain("a simulated driver is used, " + sim->native() + "; no GPU is touched");
    return out;
}

std::string shell_quoted(const std::string &word) {
    constexpr std::string_view kPlain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_@%+=:,./-";
    if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
    std::string out = "'";
    for (const char c : word) out += c == '\'' ? std::string(R"('\'')") : std::string(1, c);
    return out + "'";
}

void show(const Settings &settings, const std::vector<std::string> &command) {
    std::string out;
    for (const auto &[name, value] : settings) out += name + "=" + shell_quoted(value) + "\n";
    print(out + policy::joined(command, " ", shell_quoted) + "\n");
}

// Returns only if the command could not be started.
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
    if (options.command.empty()) {
        complain("run: there is no command to run");
        return failed(
            "usage: curb run [--cap SIZE] [--job-cap SIZE] [--policy FILE] [--strict] [--sim] [--dry-run] -- COMMAND "
            "[ARGUMENTS...]");
    }
    const Caps caps(options);
    const Environment variables = environment_with(options, caps);
    const auto source = locate(options, variables);
    if (!source) return failed(source.error());
    const Program program = program_of(options.command, variables);
    const auto policy = load(*source, program, caps, variables);
    if (!policy) return kFailure;
    auto environment = settings(*source, options, caps, *policy);
    if (!environment) return failed(environment.error());
    if (program.fault.empty() && !can_be_reached(options, program.file)) return kFailure;
    // curb's own variables come first; no variable of a policy has one of their names.
    for (auto &steering : policy::variables_to_set(*policy, variables))
        environment.value().push_back(std::move(steering));
    if (options.dry_run) {
        show(*environment, options.command);
        return 0;
    }
    for (const auto &[name, value] : *environment) {
        if (::setenv(name.c_str(), value.c_str(), 1) != 0)
            return failed(name + " cannot be set: " + std::strerror(errno));
    }
    return become(options.command);
}

}  // namespace

extern const Command kRun{
    .name = "run",
    .line = "Run a command under a policy: curb run [OPTIONS] -- COMMAND...",
    .help = R"(
The command replaces curb: same pid, signals and exit status. 125: curb itself failed (a policy that cannot be used,
a library that is not there), 126: the command cannot be executed, 127: there is no such command.

A program that is statically linked or has rights of its own (set-user-ID) runs without curb, and so does every program
if libcurb.so lies on a noexec mount. curb run warns, and then starts it; with --strict it does not, and returns 125.

Without --policy: CURB_POLICY, else $XDG_CONFIG_HOME/curb/policy.json if it is there. Without --cap: CURB_CAP;
with both the lower holds, also within another curb run. A list holds by its lowest: --cap 25%,6GiB.
/etc/curb/policy.json is a ceiling that no policy can lift. See curb policy show --help.

--job-cap (CURB_JOB_CAP) is one cap for the command and all that it starts, on each device: what any of them holds
counts. An inner curb run stays in the job (CURB_JOB).

--sim serves programs that call libcuda themselves; the CUDA runtime (PyTorch, what nvcc links) needs a real driver.

Examples:
  curb run --cap 8GiB -- python train.py      no more than 8 GiB of each GPU, the context included
  curb run --job-cap 16GiB -- torchrun x.py  16 GiB of each GPU for all workers together
  curb run --policy job.json -- ./train.sh    job.json may be edited while it runs
  curb run --dry-run --cap 75% -- ./train.sh  what would be set and run
  curb run --sim --cap 1GiB -- ./a.out        on a simulated GPU)",
    .takes = takes<RunOptions, run>,
};

}  // namespace curb::cli
