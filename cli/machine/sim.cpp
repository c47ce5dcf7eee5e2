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

fs::path in_use;  // the state file that --sim has chosen; empty without --sim

// Returns the state file (CURB_SIM_STATE) of a process that has the simulated driver loaded. Empty if it has none.
fs::path state_of(int pid) {
    if (!control::has_mapped(pid, "/sim/libcuda.so").value_or(false)) return {};
    const auto environment = environment_of(pid);
    if (!environment) return {};
    const auto state = environment->find("CURB_SIM_STATE");
    std::error_code error;
    return state == environment->end() ? fs::path()
                                       : fs::canonical(fs::path(control::proc_path(pid, "cwd")) / state->second, error);
}

// Returns the state files of this user's processes under curb. Only files that are there and are this user's: the
// driver makes, locks and writes the file that it is given, and root must not do that to a file because another user's
// process names it.
std::set<std::string> states() {
    std::set<std::string> out;
    for (const int pid : control::processes()) {
        if (control::owner_of(pid) != ::geteuid()) continue;
        const fs::path file = state_of(pid);
        struct stat status {};
        if (!file.empty() && ::stat(file.c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
            status.st_uid == ::geteuid())
            out.insert(file.string());
    }
    return out;
}

}  // namespace

bool is_on_machine(int pid) { return in_use.empty() || state_of(pid) == in_use; }

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
    in_use = fs::weakly_canonical(variable("CURB_SIM_STATE"), error);
    return std::nullopt;
}

}  // namespace curb::cli
