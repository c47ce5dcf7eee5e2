// The name of this process's job. Processes of one user with the same name share one ledger.
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "config/load.hpp"
#include "file.hpp"

namespace curb::config {
namespace {

// Returns the path of the process's cgroup: that of version 2 if it is not the root, else that of the memory
// controller.
std::string cgroup() {
    const std::string all = proc_text("/proc/self/cgroup");
    std::string found = "/";
    for (std::size_t at = 0; at < all.size();) {
        const std::size_t end = std::min(all.find('\n', at), all.size());
        const std::string line = all.substr(at, end - at);
        at = end + 1;
        const std::size_t first = line.find(':'), second = line.find(':', first + 1);
        if (first == std::string::npos || second == std::string::npos) continue;
        const std::string controllers = line.substr(first + 1, second - first - 1);
        std::string path = line.substr(second + 1);
        if (path == "/") continue;
        if (controllers.empty()) return path;
        if (controllers == "memory") found = path;
    }
    return found;
}

}  // namespace

std::string new_tree() {
    std::uint64_t random = 0;
    if (::syscall(SYS_getrandom, &random, sizeof random, GRND_NONBLOCK) != sizeof random)
        random = 0;  // early in the boot there is no entropy: only the pid distinguishes trees
    char text[48];
    std::snprintf(text, sizeof text, "%d-%08x", ::getpid(), static_cast<unsigned>(random));
    return text;
}

std::string job_name(policy::JobOf of, const Source &source) {
    switch (of) {
        case policy::JobOf::user: return "user " + std::to_string(::geteuid());
        case policy::JobOf::cgroup: return "cgroup " + cgroup();
        case policy::JobOf::slurm:
            if (!source.slurm.empty()) return "slurm " + source.slurm;
            break;
        case policy::JobOf::tree:
            if (!source.job.empty()) return "tree " + source.job;
            break;
    }
    return "tree " + new_tree();
}

}  // namespace curb::config
