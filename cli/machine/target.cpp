#include "machine/target.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "control/proc.hpp"
#include "policy/decisions/ranks.hpp"
#include "policy/values/words.hpp"

namespace curb::cli {
namespace {

namespace fs = std::filesystem;

std::map<std::string, std::string> variables_in(const std::string &text) {
    std::map<std::string, std::string> out;
    std::istringstream all(text);
    for (std::string one; std::getline(all, one, '\0');) {
        const std::size_t equals = one.find('=');
        if (equals != std::string::npos) out.emplace(one.substr(0, equals), one.substr(equals + 1));
    }
    return out;
}

}  // namespace

std::string label_of(int pid, const std::string &name) {
    return std::to_string(pid) + (name.empty() ? "" : " (" + policy::plain(name) + ")");
}

std::string name_of(int pid) {
    const std::string comm = control::proc_text(pid, "comm");
    return comm.substr(0, comm.rfind('\n'));  // a name may have newlines too
}

std::vector<int> started_by(int pid, const std::vector<int> &processes) {
    constexpr int kMostGenerations = 64;  // parents may change while we read one after the other
    std::vector<int> out;
    for (const int one : processes) {
        int above = one;
        for (int generation = 0; generation < kMostGenerations && above > 1; ++generation) {
            above = parent_of(above);
            if (above != pid) continue;
            out.push_back(one);
            break;
        }
    }
    return out;
}

int parent_of(int pid) { return static_cast<int>(control::number_in(control::proc_text(pid, "status"), "PPid:")); }

control::suspended::Process identity_of(int pid, const std::string &status) {
    return {pid, pid > 0 ? control::suspended::start_of(pid) : 0,
            static_cast<unsigned>(control::number_in(status, "Uid:")),
            static_cast<unsigned>(control::number_in(status, "Gid:"))};
}

control::suspended::Process identity_of(int pid) { return identity_of(pid, control::proc_text(pid, "status")); }

bool is_suspended(const control::suspended::Process &process) {
    return process.start != 0 && control::suspended::read(process).has_value();
}

std::optional<std::map<std::string, std::string>> environment_of(int pid) {
    const auto text = control::file_text(control::proc_path(pid, "environ"), control::kMostOfEnvironment);
    return text ? std::optional(variables_in(*text)) : std::nullopt;
}

Target inspect(int pid, bool libraries) {
    const std::string status = control::proc_text(pid, "status");
    Target target;
    target.process = identity_of(pid, status);
    if (target.process.start == 0) return target;
    const auto group = static_cast<int>(control::number_in(status, "Tgid:"));
    if (group != pid) target.thread_of = group;
    target.parent = static_cast<int>(control::number_in(status, "PPid:"));
    target.name = name_of(pid);
    std::error_code error;
    target.executable = fs::read_symlink(control::proc_path(pid, "exe"), error).string();
    // Another user's environ opens without an error, but cannot be read. Its exe cannot be resolved: check that.
    if (!error) target.environment = environment_of(pid);
    if (!libraries) return target;
    control::each_line(pid, "maps", [&](std::string_view line) {
        target.under_curb |= line.find(control::kLibrary) != std::string_view::npos;
        target.has_nccl |= line.find("/libnccl") != std::string_view::npos;
        return !target.under_curb || !target.has_nccl;
    });
    return target;
}

std::optional<Ranks> ranks_of(const std::map<std::string, std::string> &environment) {
    const char *count = policy::count_of_ranks([&](const char *name) {
        const auto found = environment.find(name);
        return found == environment.end() ? nullptr : found->second.c_str();
    });
    return count ? std::optional(Ranks{count, environment.at(count)}) : std::nullopt;
}

}  // namespace curb::cli
