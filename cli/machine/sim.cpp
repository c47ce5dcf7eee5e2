#include "sim.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <set>

#include "control/client.hpp"
#include "control/proc.hpp"
#include "libraries.hpp"
#include "policy/values/words.hpp"
#include "target.hpp"
#include "terminal.hpp"

namespace curb::cli {
namespace {

// Returns the state files (CURB_SIM_STATE) of the processes under curb that have the simulated driver loaded.
std::set<std::string> states() {
    std::set<std::string> out;
    for (const int pid : control::processes()) {
        if (control::proc_text(pid, "maps").find("/sim/libcuda.so") == std::string::npos) continue;
        const auto environment = inspect(pid).environment;
        if (!environment) continue;
        if (const auto state = environment->find("CURB_SIM_STATE"); state != environment->end())
            out.insert(state->second);
    }
    return out;
}

}  // namespace

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
    return std::nullopt;
}

}  // namespace curb::cli
