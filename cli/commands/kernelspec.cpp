// `curb kernelspec install`: writes a Jupyter kernel that starts by `curb run`.

#include <algorithm>
#include <filesystem>

#include "command/command.hpp"
#include "commands/limit_options.hpp"
#include "machine/libraries.hpp"
#include "policy/values/words.hpp"
#include "terminal/format.hpp"
#include "terminal/json.hpp"
#include "terminal/replace_file.hpp"
#include "terminal/terminal.hpp"

namespace curb::cli {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

// Jupyter replaces it by the path of the kernel's connection file.
constexpr const char *kConnection = "{connection_file}";

struct KernelOptions : StartOptions {
    std::string name = "curb", language = "python";
    std::optional<std::string> display_name, prefix;
    bool replace = false, json = false;
    Words command;

    void declare(Options &takes) {
        StartOptions::declare(takes);
        takes.option("--name", name, "NAME", "The kernel's name for Jupyter's commands [curb]");
        takes.option("--display-name", display_name, "TEXT", "Its name for people");
        takes.option("--language", language, "LANGUAGE", "The language of its notebooks [python]");
        takes.option("--prefix", prefix, "PATH", "Into PATH/share/jupyter/kernels; without it, for this user alone");
        takes.flag("--replace", replace, "Replace a kernel of that name");
        takes.json(json);
        takes.rest(command, Rest::behind_dashes);
    }
};

// Returns the command of the Python kernel of this environment. The error has the remedy.
policy::Result<Words, std::string> python_kernel() {
    const Ended asked = run_shell(
        "command -v python3 >/dev/null && python3 -c 'import sys, importlib.util; print(sys.executable); "
        "sys.exit(importlib.util.find_spec(\"ipykernel_launcher\") is None)' </dev/null");
    const std::string python = asked.output.substr(0, asked.output.find('\n'));
    if (python.empty()) return std::string("there is no python3 that starts; name the kernel's command behind --");
    if (asked.status != 0)
        return python + " has no ipykernel; run: " + python + " -m pip install ipykernel, or name another kernel's " +
               "command behind --";
    return Words{python, "-m", "ipykernel_launcher", "-f", kConnection};
}

// Returns the folder of the kernel, or why the options name none.
policy::Result<fs::path, std::string> folder_of(const KernelOptions &options) {
    const bool good = !options.name.empty() && options.name.find_first_not_of(
                                                   "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklm"
                                                   "nopqrstuvwxyz0123456789._-") == std::string::npos;
    if (!good || options.name.find_first_of(".-") == 0)
        return "--name: " + policy::quote(options.name) +
               " is not letters, digits, '.', '_' and '-' alone, or begins with '.' or '-'";
    const fs::path kernels = fs::path("jupyter") / "kernels" / options.name;
    if (options.prefix) return fs::absolute(*options.prefix) / "share" / kernels;
    if (const std::string data = variable("JUPYTER_DATA_DIR"); !data.empty())
        return fs::absolute(data) / "kernels" / options.name;
    if (const std::string data = variable("XDG_DATA_HOME"); !data.empty()) return fs::absolute(data) / kernels;
    const std::string home = variable("HOME");
    if (home.empty()) return std::string("HOME is not set; name a place: --prefix PATH");
    return fs::absolute(home) / ".local" / "share" / kernels;
}

// Returns "Python 3 (4GiB of each GPU)".
std::string display_name_of(const KernelOptions &options) {
    if (options.display_name) return *options.display_name;
    const std::string language = options.command.empty() ? "Python 3" : options.name;
    const std::string caps = policy::joined(options.caps, ", ");
    if (caps.empty()) return language + " (curb)";
    return language + " (" + caps + (caps.find('=') == std::string::npos ? " of each GPU)" : ")");
}

void announce(const KernelOptions &options, const std::string &file, const std::string &shown,
              const std::string &argv) {
    if (options.json)
        print_line(json::object({{"file", json::text(file)},
                                 {"name", json::text(options.name)},
                                 {"display_name", json::text(shown)},
                                 {"argv", argv}}));
    else
        print_text(
            fmt::format("wrote {}\nJupyter lists the kernel as \"{}\"; remove it by: jupyter kernelspec remove {}\n",
                        file, shown, policy::lower_case(options.name)));  // as Jupyter names it
}

// Returns why the kernel could not start, or only once. nullopt if nothing is wrong.
std::optional<std::string> fault_of(const KernelOptions &options, const Words &kernel) {
    if (std::none_of(kernel.begin(), kernel.end(),
                     [](const std::string &word) { return word.find(kConnection) != std::string::npos; }))
        return std::string("the command has no word ") + kConnection +
               ", in whose place Jupyter puts the file by which it reaches the kernel";
    const auto &trace = options.flags[static_cast<std::size_t>(policy::Flag::trace)];
    if (trace && trace->find("%p") == std::string::npos)
        return "--trace: each start of the kernel begins a new file; write %p in the name";
    return std::nullopt;
}

// Returns the words that start the kernel by curb run; `more`: further options.
Words run_words(const KernelOptions &options, const Words &kernel, const Words &more = {}) {
    Words out{own_file().native(), "run"};
    for (const Words &part : {options.words(), more, Words{"--"}, kernel})
        out.insert(out.end(), part.begin(), part.end());
    return out;
}

int install(const KernelOptions &options) {
    const auto folder = folder_of(options);
    if (!folder) return failed(folder.error());
    const auto kernel = options.command.empty() ? python_kernel() : options.command;
    if (!kernel) return failed(kernel.error());
    if (const auto fault = fault_of(options, *kernel)) return failed(*fault);
    // Try it now: the errors of a kernel that does not start appear only in the server's log.
    const Words trial = run_words(options, *kernel, {"--dry-run"});
    if (run_shell(policy::joined(trial, " ", shell_quoted) + " </dev/null").status != 0)
        return kFailure;  // it has printed why

    std::error_code error;
    const std::string file = (*folder / "kernel.json").native();
    if (!options.replace && fs::exists(file, error))
        return failed(file + " exists already; choose another --name, or --replace it");
    const std::string shown = display_name_of(options);
    const std::string argv = json::list(run_words(options, *kernel), json::text);
    const std::string text = fmt::format(
        "{{\n \"argv\": {},\n \"display_name\": {},\n \"language\": {},\n \"metadata\": {}\n}}\n", argv,
        json::text(shown), json::text(options.language), options.command.empty() ? "{\"debugger\": true}" : "{}");
    fs::create_directories(*folder, error);
    if (error) return failed("cannot make " + folder->native() + ": " + error.message());
    if (const auto why = replace_file(file, text)) return failed(*why);
    announce(options, file, shown, argv);
    return 0;
}

}  // namespace

extern const Command kKernelspec{
    .name = "kernelspec",
    .line = "Kernels of Jupyter under a policy",
    .help = R"(
Examples:
  curb kernelspec install --cap 6GiB)",
};

extern const Command kKernelspecInstall{
    .group = "kernelspec",
    .name = "install",
    .line = "Add a kernel to Jupyter that runs under a policy",
    .usage = "curb kernelspec install [OPTIONS] [-- COMMAND...]",
    .help = R"(
Writes kernel.json, which starts the kernel by curb run with these options. Interrupt, restart and shutdown work as
without curb: curb is not a process of its own. Each notebook has a kernel, and each kernel has the cap for itself.

Without COMMAND: the ipykernel of the python3 in PATH. The options are tried before anything is written.

Exit status 0: written, 125: not; stderr says why.

Examples:
  curb kernelspec install --cap 6GiB --nap 10m
  curb kernelspec install --policy notebook.json --name small
  curb kernelspec install --cap 25% --prefix ~/venv
  curb kernelspec install --name r --language R -- ./kernel.sh {connection_file})",
    .takes = takes<KernelOptions, install>,
};

}  // namespace curb::cli
