#include "machine/sim.hpp"

#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <set>

#include "control/client.hpp"
#include "control/proc.hpp"
#include "machine/libraries.hpp"
#include "machine/target.hpp"
#include "policy/values/words.hpp"
#include "terminal/terminal.hpp"

namespace curb::cli {
namespace {

namespace fs = std::filesystem;

std::string in_use;  // the state file that --sim has chosen; empty without --sim

// Returns the state files (CURB_SIM_STATE) of this user's processes under curb that have the simulated driver loaded.
// Only files that are there and are this user's: the driver makes, locks and writes the file that it is given, and root
// must not do that to a file because another user's process names it.
std::set<std::string> states() {
    std::set<std::string> out;
    for (const int pid : control::processes()) {
        if (control::owner_of(pid) != ::geteuid()) continue;
        if (!control::has_mapped(pid, "/sim/libcuda.so").value_or(false)) continue;
        const auto environment = environment_of(pid);
        if (!environment) continue;
        const auto state = environment->find("CURB_SIM_STATE");
        if (state == environment->end()) continue;
        std::error_code error;
        const fs::path file = fs::canonical(fs::path(control::proc_path(pid, "cwd")) / state->second, error);
        struct stat status {};
        if (!error && ::stat(file.c_str(), &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == ::geteuid())
            out.insert(file.string());
    }
    return out;
}

}  // namespace

// By what the process has mapped: its variables may name a file on a FUSE mount of another user's, which root must not
// look up.
bool is_on_machine(int pid) {
    bool found = in_use.empty();
    if (!found)
        control::each_line(pid, "maps", [&](std::string_view line) {
            found = line.ends_with(' ' + in_use);
            return !found;
        });
    return found;
}

std::optional<std::string> use_sim(bool wanted) {
    if (!wanted) return std::nullopt;
    const auto sim = find_sim();
    if (!sim) return sim.error();
    if (variable("CURB_SIM_STATE").empty()) {
        const std::set<std::string> shared = states();
        if (shared.size() > 1)
            return "processes run on " + std::to_string(shared.size()) +
                   " simulated machines; set CURB_SIM_STATE to one of " + policy::joined(shared, ", ");
        if (shared.empty())
            return std::string(
                "no process shares its simulated machine, so there is nothing to see from outside; start programs with "
                "CURB_SIM_STATE=FILE curb run --sim, or leave --sim out to see what they say themselves");
        if (::setenv("CURB_SIM_STATE", shared.begin()->c_str(), 1) != 0) return std::string("no memory");
    }
    // They stay loaded. A later dlopen by name finds them, because they have the driver's SONAMEs.
    for (const char *name : {"libcuda.so.1", "libnvidia-ml.so.1"})
        if (!::dlopen((*sim / name).c_str(), RTLD_NOW | RTLD_LOCAL))
            return std::string("the simulated driver cannot be loaded: ") + ::dlerror();
    std::error_code error;
    in_use = fs::weakly_canonical(variable("CURB_SIM_STATE"), error).native();
    return std::nullopt;
}

}  // namespace curb::cli
