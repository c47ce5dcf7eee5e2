// Finds the `curb` commands of this machine, how to remove them, and PyPI's other project of that name.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>

#include "doctor/doctor.hpp"
#include "machine/libraries.hpp"
#include "terminal/terminal.hpp"

namespace curb::cli {
namespace {

namespace fs = std::filesystem;

// Returns the first folder of Python packages under `prefix` for which `holds` returns true. Empty if there is none.
std::string python_folder(const fs::path &prefix, const std::function<bool(const fs::path &)> &holds) {
    std::error_code error;
    for (fs::directory_iterator lib(prefix / "lib", error), end; !error && lib != end; lib.increment(error)) {
        if (!lib->path().filename().string().starts_with("python3")) continue;
        for (const char *name : {"site-packages", "dist-packages"})
            if (holds(lib->path() / name)) return lib->path() / name;
    }
    return "";
}

// True if pip has installed the project into the folder.
bool has_project(const fs::path &folder, const std::string &name) {
    std::error_code error;
    for (fs::directory_iterator package(folder, error), end; !error && package != end; package.increment(error)) {
        const std::string entry = package->path().filename().string();
        if (entry.starts_with(name + "-") && entry.ends_with("-info")) return true;
    }
    return false;
}

std::string removal_from(const fs::path &prefix) {
    const bool is_wheel =
        !python_folder(prefix, [](const fs::path &folder) { return has_project(folder, "curb_gpu"); }).empty();
    if (is_wheel) return "pip uninstall curb-gpu, with the pip of " + prefix.string();
    if (prefix == "/usr") return "apt remove curb (or dnf)";
    return "remove curb from " + prefix.string();
}

Installation installation(const fs::path &command) {
    Installation out;
    out.command = command;
    if (const auto elf = read_elf(command)) out.version = elf->version;
    const fs::path prefix = command.parent_path().parent_path();
    if (const auto library = find_library_under(prefix)) out.library = *library;
    out.removal = removal_from(prefix);
    return out;
}

}  // namespace

std::string python_clash(const fs::path &prefix) {
    return python_folder(
        prefix, [](const fs::path &folder) { return has_project(folder, "curb_gpu") && has_project(folder, "curb"); });
}

Installations installations() {
    Installations out;
    std::error_code error;
    const fs::path own = own_file();
    out.own = installation(own);
    std::vector<std::string> folders = folders_of(variable("PATH"));
    std::vector<fs::path> known{own};
    const std::size_t in_path = folders.size();
    folders.insert(folders.end(), {"/usr/local/bin", "/usr/bin"});
    for (std::size_t i = 0; i < folders.size(); ++i) {
        const fs::path named = fs::path(folders[i]) / "curb";
        if (!named.is_absolute() || ::access(named.c_str(), X_OK) != 0 || !fs::is_regular_file(named, error)) continue;
        if (out.first.empty() && i < in_path) out.first = named;
        const fs::path file = fs::canonical(named, error);
        if (error || std::find(known.begin(), known.end(), file) != known.end()) continue;
        known.push_back(file);
        out.others.push_back(installation(file));
    }
    return out;
}

}  // namespace curb::cli
