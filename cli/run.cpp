// `curb run`: everything that can go wrong is found before the program starts; then curb becomes the program. Nothing
// that the program inherits is touched but the environment: no handler, no mask, no descriptor left open.
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "commands.hpp"
#include "config/load.hpp"
#include "library.hpp"
#include "policy/size.hpp"
#include "policy/steer.hpp"
#include "policy/words.hpp"
#include "subject.hpp"
#include "terminal.hpp"

namespace curb::cli {
namespace {

namespace fs = std::filesystem;
using Error = std::string;
template <class T>
using Result = policy::Result<T, Error>;

std::string variable(const char *name) {
    const char *value = std::getenv(name);
    return value == nullptr ? "" : value;
}

// What is laid over the environment, in the order in which it is shown.
using Settings = std::vector<std::pair<std::string, std::string>>;

// `front` before what stands there already.
std::string prepended(const std::string &front, const std::string &rest) {
    return rest.empty() ? front : front + ":" + rest;
}

// The environment as the program will have it: the options taken for the variables that they become.
Environment environment_with(const RunOptions &options) {
    return [&](const char *name) -> const char * {
        if (options.cap && std::strcmp(name, "CURB_CAP") == 0) return options.cap->c_str();
        if (options.policy && std::strcmp(name, "CURB_POLICY") == 0) return options.policy->c_str();
        return std::getenv(name);
    };
}

// What the program will find.
Result<config::Source> locate(const RunOptions &options, const Environment &environment) {
    if (options.cap && options.cap->empty()) return "--cap: " + policy::parse_size("").error();
    if (options.policy && options.policy->empty()) return Error("--policy: the path is empty; name a file");
    return config::locate(environment);
}

// The policy that the program will get; none: every error of it is told.
std::optional<policy::Policy> load(const config::Source &source, const RunOptions &options,
                                   const Environment &environment) {
    const Program program = program_of(options.command, environment);
    auto loaded = config::load(source, who_is(program, environment));
    if (loaded) return std::move(loaded).value().policy;
    for (config::Diagnostic diagnostic : loaded.error()) {
        if (options.cap && diagnostic.file == "CURB_CAP") diagnostic.file = "--cap";
        complain(diagnostic.text());
    }
    return std::nullopt;
}

Result<Settings> settings(const config::Source &source, const RunOptions &options) {
    Settings out;
    if (options.cap) out.emplace_back("CURB_CAP", *options.cap);
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

// Only returns when the command could not be started.
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

}  // namespace

int run(const RunOptions &options) {
    if (options.command.empty()) {
        complain("run: there is no command to run");
        complain("usage: curb run [--cap SIZE] [--policy FILE] [--sim] [--dry-run] -- COMMAND [ARGUMENTS...]");
        return kFailure;
    }
    const Environment variables = environment_with(options);
    const auto source = locate(options, variables);
    if (!source) {
        complain(source.error());
        return kFailure;
    }
    const auto policy = load(*source, options, variables);
    if (!policy) return kFailure;
    auto environment = settings(*source, options);
    if (!environment) {
        complain(environment.error());
        return kFailure;
    }
    // curb's own come first: none of the policy's has a name of theirs.
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

}  // namespace curb::cli
