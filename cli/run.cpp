// `curb run`: everything that can go wrong is found before the program starts; then curb becomes the program. Nothing
// that the program inherits is touched but the environment: no handler, no mask, no descriptor left open.
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "commands.hpp"
#include "config/load.hpp"
#include "policy/size.hpp"
#include "policy/steer.hpp"
#include "policy/words.hpp"
#include "subject.hpp"

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

// A path as the loader's lists must be able to carry it.
std::optional<Error> not_carried(const fs::path &path, const char *list, std::string_view separators) {
    const std::size_t at = path.native().find_first_of(separators);
    if (at == std::string::npos) return std::nullopt;
    return std::string(list) + " cannot carry the path '" + policy::one_line(path.native()) + "', because of the " +
           policy::quote(path.native().substr(at, 1)) + " in it; install curb under a path without it";
}

// The directory that holds bin/, lib/ and sim/.
fs::path prefix() {
    std::error_code error;
    const fs::path self = fs::read_symlink("/proc/self/exe", error);
    return self.parent_path().parent_path();
}

bool is_elf(const fs::path &path) {
    std::error_code error;
    if (!fs::is_regular_file(path, error)) return false;
    char magic[4] = {};
    std::ifstream(path, std::ios::binary).read(magic, sizeof magic);
    return std::memcmp(magic,
                       "\x7F"
                       "ELF",
                       sizeof magic) == 0;
}

// The first that is there, or where it was looked for.
Result<fs::path> first_of(const std::vector<fs::path> &candidates, const char *what, const char *remedy) {
    Error error = std::string("there is no ") + what + " (looked for";
    const char *separator = " ";
    for (const fs::path &candidate : candidates) {
        if (is_elf(candidate)) return candidate;
        error.append(separator).append(candidate.native());
        separator = ", ";
    }
    return error + "); " + remedy;
}

Result<fs::path> find_library() {
    constexpr const char *kName = "libcurb.so";
    if (const std::string named = variable("CURB_LIBRARY"); !named.empty()) {
        return first_of({fs::absolute(named)}, "shared library that CURB_LIBRARY names",
                        "correct or unset CURB_LIBRARY");
    }
    const fs::path lib = prefix() / "lib";
    std::vector<fs::path> candidates{lib / kName, lib / "curb" / kName};
    std::error_code error;
    for (fs::directory_iterator entry(lib, error), end; !error && entry != end; entry.increment(error)) {
        fs::path multiarch = entry->path() / "curb" / kName;  // lib/x86_64-linux-gnu/curb/libcurb.so
        if (is_elf(multiarch)) candidates.push_back(std::move(multiarch));
    }
    return first_of(candidates, kName, "set CURB_LIBRARY to its path");
}

Result<fs::path> find_sim() {
    constexpr const char *kDriver = "libcuda.so.1";
    const auto driver = first_of({prefix() / "sim" / kDriver, prefix() / "lib" / "curb" / "sim" / kDriver},
                                 "simulated driver", "build it (it comes with curb), or run without --sim");
    if (!driver) return driver.error();
    return driver->parent_path();
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
    if (auto error = not_carried(*library, "LD_PRELOAD", " :$")) return *error;
    out.emplace_back("LD_PRELOAD", prepended(library->native(), variable("LD_PRELOAD")));

    if (options.sim) {
        const auto sim = find_sim();
        if (!sim) return sim.error();
        if (auto error = not_carried(*sim, "LD_LIBRARY_PATH", ":;$")) return *error;
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
    for (const auto &[name, value] : settings) std::printf("%s=%s\n", name.c_str(), shell_quoted(value).c_str());
    const char *separator = "";
    for (const std::string &word : command) {
        std::printf("%s%s", separator, shell_quoted(word).c_str());
        separator = " ";
    }
    std::printf("\n");
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
    for (auto &steering : policy::variables_to_set(policy->frameworks, variables))
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
