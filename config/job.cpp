// The name of this process's job. Processes of one user with the same name share one ledger.
#include <sys/random.h>
#include <sys/stat.h>
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

// Returns the words that tell the namespace of cgroups from others: in its own, each container has the path "/". Empty
// if it is the machine's.
std::string cgroup_namespace() {
    constexpr ino_t kOfMachine = 0xEFFFFFFB;  // PROC_CGROUP_INIT_INO of the kernel
    struct stat status {};
    if (::stat("/proc/self/ns/cgroup", &status) != 0 || status.st_ino == kOfMachine) return {};
    return " in namespace " + std::to_string(status.st_ino);
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

std::optional<unsigned> other_user_of_tree(const Source &source) {
    int pid = 0, length = 0;
    unsigned random = 0, real = 0, effective = 0;
    if (std::sscanf(source.job.c_str(), "%d-%8x%n", &pid, &random, &length) != 2 ||
        static_cast<std::size_t>(length) != source.job.size())
        return std::nullopt;
    const std::string status = proc_text(("/proc/" + std::to_string(pid) + "/status").c_str());
    const std::size_t line = status.find("\nUid:");
    if (line == std::string::npos || std::sscanf(status.c_str() + line, "\nUid: %u %u", &real, &effective) != 2 ||
        effective == ::geteuid())
        return std::nullopt;
    return effective;
}

std::string job_name(policy::JobOf of, const Source &source) {
    switch (of) {
        case policy::JobOf::user: return "user " + std::to_string(::geteuid());
        case policy::JobOf::cgroup: return "cgroup " + cgroup() + cgroup_namespace();
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
