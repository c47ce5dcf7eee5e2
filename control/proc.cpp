#include "proc.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <sstream>

#include "control/descriptor.hpp"
#include "process_stat.hpp"

namespace curb::control {
namespace {

std::string path_of(int pid, const char *what) { return "/proc/" + std::to_string(pid) + "/" + what; }

}  // namespace

std::string process_text(int pid) { return "process " + std::to_string(pid); }

// Not by a stream, whose iterators throw when the process ends meanwhile.
std::string proc_text(int pid, const char *what) {
    const Descriptor in(::open(path_of(pid, what).c_str(), O_RDONLY | O_CLOEXEC));
    std::string out;
    std::array<char, 4096> block;
    for (;;) {
        const ssize_t got = in ? ::read(in.number(), block.data(), block.size()) : 0;
        if (got <= 0) return out;
        out.append(block.data(), static_cast<std::size_t>(got));
    }
}

std::string status_field(int pid, std::string_view name) {
    std::istringstream lines(proc_text(pid, "status"));
    for (std::string line; std::getline(lines, line);) {
        if (!line.starts_with(name)) continue;
        const std::size_t begin = line.find_first_not_of(" \t", name.size());
        return begin == std::string::npos ? "" : line.substr(begin);
    }
    return {};
}

bool has_ended(int pid) {
    if (::kill(pid, 0) != 0 && errno == ESRCH) return true;
    const auto stat = stat_of(pid);
    return stat && stat->has_ended();
}

bool is_stopped(int pid) {
    const std::string state = status_field(pid, "State:");
    return state.starts_with('T') || state.starts_with('t');
}

uid_t owner_of(int pid) {
    struct stat status {};
    return ::stat(path_of(pid, "").c_str(), &status) == 0 ? status.st_uid : ::geteuid();
}

}  // namespace curb::control
