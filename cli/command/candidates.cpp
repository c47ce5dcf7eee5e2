#include "command/candidates.hpp"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "control/proc.hpp"
#include "control/runtime_dir.hpp"
#include "control/suspended.hpp"
#include "policy/names.hpp"
#include "policy/policy.hpp"
#include "policy/values/words.hpp"

namespace curb::cli {
namespace {

// Returns the processes that can be asked, by their sockets; or those that are suspended, by their records.
std::vector<HelpRow> processes(bool suspended) {
    const std::string ending = suspended ? control::suspended::kRecordName : ".sock";
    std::map<std::string, std::string> found;
    for (const control::Folder &folder : control::folders(control::places(), ::getuid())) {
        const auto opened = control::open_folder(folder, false);
        if (!opened) continue;
        for (const std::string &name :
             control::names_in(*opened, [&](const std::string &one) { return one.ends_with(ending); })) {
            const std::string pid = name.substr(0, name.find('-'));
            const auto number = policy::whole_number(pid);
            std::string comm = number ? control::proc_text(*number, "comm") : "";
            if (comm.empty()) continue;
            comm.pop_back();
            found[pid] = "(" + policy::plain(comm) + ")";
        }
    }
    std::vector<HelpRow> out;
    out.reserve(found.size());
    for (const auto &[pid, name] : found) out.push_back({pid, name});
    return out;
}

// Returns this user and those whose processes use GPUs under curb.
std::vector<HelpRow> users() {
    std::set<uid_t> owners{::getuid()};
    for (const control::Folder &folder : control::public_folders(control::places())) owners.insert(folder.owner);
    std::vector<HelpRow> out;
    for (const uid_t owner : owners)
        if (const passwd *entry = ::getpwuid(owner)) out.push_back({entry->pw_name, ""});
    return out;
}

// Returns the keys of GPUs, as policies write them, by the kernel driver's own files.
std::vector<HelpRow> gpus() {
    std::vector<HelpRow> out{{"*", "every GPU"}};
    std::error_code none;
    std::size_t count = 0;
    for (const auto &gpu : std::filesystem::directory_iterator("/proc/driver/nvidia/gpus", none)) {
        std::ifstream lines(gpu.path() / "information");
        for (std::string line, model; std::getline(lines, line);) {
            const std::string value(policy::trimmed(std::string_view(line).substr(line.find(':') + 1)));
            if (line.starts_with("Model")) model = value;
            if (line.starts_with("GPU UUID") || line.starts_with("Bus Location")) out.push_back({value, model});
        }
        ++count;
    }
    for (std::size_t i = 0; i < std::max<std::size_t>(count, 1); ++i)
        for (const char *kind : {"cuda:", "nvml:"}) out.push_back({kind + std::to_string(i), ""});
    return out;
}

}  // namespace

std::vector<HelpRow> values_of(const std::string &shape, const std::string &option, const std::string &command) {
    if (shape.starts_with("PID")) return processes(command == "resume");
    for (const char *file : {"FILE", "TRACE", "PATH"})
        if (shape.starts_with(file)) return {{kFiles, ""}};
    if (shape.starts_with("KEY")) return gpus();
    std::vector<HelpRow> out;
    if (option == "--step")
        for (const policy::Step step : policy::all_steps()) out.push_back({policy::step_name(step), ""});
    if (option == "--color") out = {{"auto", "(on a terminal)"}, {"always", ""}, {"never", ""}};
    if (option == "--log")
        for (const char *level : {"trace", "debug", "info", "warning", "error", "off"}) out.push_back({level, ""});
    if (option == "--name" && shape.starts_with("GLOB"))
        for (const auto &[pid, name] : processes(false)) out.push_back({name.substr(1, name.size() - 2), ""});
    if (option == "--user") out = users();
    return out;
}

}  // namespace curb::cli
