// `curb run`: finds everything that can go wrong, then becomes the program. It changes nothing that the program
// inherits except the environment: no handler, no mask, no open descriptor.
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "command.hpp"
#include "config/load.hpp"
#include "libraries.hpp"
#include "policy/size.hpp"
#include "policy/steer.hpp"
#include "policy/words.hpp"
#include "reach.hpp"
#include "subject.hpp"
#include "terminal.hpp"

namespace curb::cli {
namespace {

namespace fs = std::filesystem;
using Error = std::string;
template <class T>
using Result = policy::Result<T, Error>;

struct RunOptions {
    std::optional<std::string> cap, policy;
    bool strict = false;  // a program that cannot be put under curb is not started
    bool sim = false, dry_run = false;
    std::vector<std::string> command;

    void declare(Options &takes) {
        takes.option("--cap", cap, "SIZE", "Ceiling of GPU memory on each device: 8GiB, 512MiB, 75%");
        takes.option("--policy", policy, "FILE", "Policy file");
        takes.flag("--strict", strict, "Fail if curb cannot come into the program, instead of warning");
        takes.flag("--sim", sim, "Use the simulated driver: no GPU is needed or touched");
        takes.flag("--dry-run", dry_run, "Print what would be set and run, and stop");
        takes.rest(command, Rest::at_first_word);
    }
};

std::string variable(const char *name) {
    const char *value = std::getenv(name);
    return value == nullptr ? "" : value;
}

// The variables that curb sets, in the order in which --dry-run prints them.
using Settings = std::vector<std::pair<std::string, std::string>>;

// Puts `front` before the value that the variable has.
std::string prepended(const std::string &front, const std::string &rest) {
    return rest.empty() ? front : front + ":" + rest;
}

// CURB_CAP as the program will have it: the lower of --cap and of its present value, which another curb run or the
// administrator may have set.
struct Cap {
    std::optional<std::string> text;  // nothing: as it is
    const char *place = "CURB_CAP";   // where it was written, if it is wrong
};
Cap cap_with(const RunOptions &options) {
    if (!options.cap) return {};
    const std::string outer = variable("CURB_CAP");
    if (outer.empty() || !policy::parse_lowest(*options.cap)) return {*options.cap, "--cap"};
    const auto there = policy::parse_lowest(outer), both = policy::parse_lowest(outer + "," + *options.cap);
    if (!there) return {outer};
    if (*both == *there)
        complain("--cap " + *options.cap + " has no effect: CURB_CAP is " + policy::format(*there) +
                 " already, and the lower holds");
    return {policy::format(*both)};
}

// The environment as the program will have it, with the options in place of the variables that they set.
Environment environment_with(const RunOptions &options, const Cap &cap) {
    return [&](const char *name) -> const char * {
        if (cap.text && std::strcmp(name, "CURB_CAP") == 0) return cap.text->c_str();
        if (options.policy && std::strcmp(name, "CURB_POLICY") == 0) return options.policy->c_str();
        return std::getenv(name);
    };
}

// Returns the policy files that the program will find.
Result<config::Source> locate(const RunOptions &options, const Environment &environment) {
    if (options.cap && options.cap->empty()) return "--cap: " + policy::parse_size("").error();
    if (options.policy && options.policy->empty()) return Error("--policy: the path is empty; name a file");
    return config::locate(environment);
}

// Warns if the loader will not load libcurb.so into the program. Returns false if --strict then forbids to start it.
bool can_be_reached(const RunOptions &options, const std::string &file) {
    const auto library = find_library();
    const auto why = library ? why_out_of_reach(file, *library) : std::nullopt;  // settings() tells of no library
    if (why) complain(*why + (options.strict ? "; --strict forbids that" : ""));
    return !why || !options.strict;
}

// Returns the policy of the program. Prints every error and returns nullopt if it has any.
std::optional<policy::Policy> load(const config::Source &source, const Program &program, const Cap &cap,
                                   const Environment &environment) {
    auto loaded = config::load(source, who_is(program, environment));
    if (loaded) return std::move(loaded).value().policy;
    for (config::Diagnostic diagnostic : loaded.error()) {
        if (diagnostic.file == "CURB_CAP") diagnostic.file = cap.place;
        complain(diagnostic.text());
    }
    return std::nullopt;
}

Result<Settings> settings(const config::Source &source, const RunOptions &options, const Cap &cap) {
    Settings out;
    if (cap.text) out.emplace_back("CURB_CAP", *cap.text);
    if (options.policy || !variable("CURB_POLICY").empty()) out.emplace_back("CURB_POLICY", source.file);

    const auto library = find_library();
    if (!library) return library.error();
    if (auto error = not_carried(*library, "LD_PRELOAD", kPreloadSeparators)) return *error;
    out.emplace_back("LD_PRELOAD", prepended(library->native(), variable("LD_PRELOAD")));

    if (options.sim) {
        const auto sim = find_sim();
        if (!sim) return sim.error();
        if (auto error = not_carried(*sim, "LD_LIBRARY_PATH", kLibraryPathSeparators)) return *error;
        out.emplace_back("LD_LIBRARY_PATH", prepended(sim->native(), variable("LD_LIBRARY_PATH")));
        complain("a simulated driver is used, " + sim->native() + "; no GPU is touched");
    }
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
    const char *separator = "";
    for (const std::string &word : command) out += std::exchange(separator, " ") + shell_quoted(word);
    print(out + "\n");
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
    if (error != ENOENT) {
        complain(name + " cannot be executed: " + std::strerror(error));
        return kNotExecutable;
    }
    if (command.front().find('/') != std::string::npos && ::access(command.front().c_str(), F_OK) == 0) {
        complain(name + " cannot be executed: the interpreter that it names is not there");
        return kNotExecutable;
    }
    complain(name + " was not found");
    return kNotFound;
}

int run(const RunOptions &options) {
    if (options.command.empty()) {
        complain("run: there is no command to run");
        complain(
            "usage: curb run [--cap SIZE] [--policy FILE] [--strict] [--sim] [--dry-run] -- COMMAND [ARGUMENTS...]");
        return kFailure;
    }
    const Cap cap = cap_with(options);
    const Environment variables = environment_with(options, cap);
    const auto source = locate(options, variables);
    if (!source) {
        complain(source.error());
        return kFailure;
    }
    const Program program = program_of(options.command, variables);
    const auto policy = load(*source, program, cap, variables);
    if (!policy) return kFailure;
    auto environment = settings(*source, options, cap);
    if (!environment) {
        complain(environment.error());
        return kFailure;
    }
    if (program.fault.empty() && !can_be_reached(options, program.file)) return kFailure;
    // curb's own variables come first; no variable of a policy has one of their names.
    for (auto &steering : policy::variables_to_set(*policy, variables))
        environment.value().push_back(std::move(steering));
    if (options.dry_run) {
        show(*environment, options.command);
        return 0;
    }
    for (const auto &[name, value] : *environment) {
        if (::setenv(name.c_str(), value.c_str(), 1) != 0) {
            complain(name + " cannot be set: " + std::strerror(errno));
            return kFailure;
        }
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

--sim serves programs that call libcuda themselves; the CUDA runtime (PyTorch, what nvcc links) needs a real driver.

Examples:
  curb run --cap 8GiB -- python train.py      no more than 8 GiB of each GPU, the context included
  curb run --policy job.json -- ./train.sh    job.json may be edited while it runs
  curb run --dry-run --cap 75% -- ./train.sh  what would be set and run
  curb run --sim --cap 1GiB -- ./a.out        on a simulated GPU)",
    .takes = takes<RunOptions, run>,
};

}  // namespace curb::cli
