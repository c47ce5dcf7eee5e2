#include "control/proc.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>

#include "control/descriptor.hpp"
#include "policy/words.hpp"
#include "process_stat.hpp"

namespace curb::control {
namespace {

std::string path_of(int pid, const char *what) { return "/proc/" + std::to_string(pid) + "/" + what; }

}  // namespace

std::string process_text(int pid) { return "process " + std::to_string(pid); }

// Not by a stream, whose iterators throw when the process ends meanwhile.
std::string proc_text(int pid, const char *what, std::size_t most) {
    const Descriptor in(::open(path_of(pid, what).c_str(), O_RDONLY | O_CLOEXEC));
    std::string out;
    std::array<char, 4096> block;
    for (;;) {
        const std::size_t left = std::min(most - out.size(), block.size());
        const ssize_t got = in ? ::read(in.number(), block.data(), left) : 0;
        if (got <= 0) return out;
        out.append(block.data(), static_cast<std::size_t>(got));
    }
}

std::string_view field_in(std::string_view status, std::string_view name) {
    while (!status.empty()) {
        const std::string_view line = status.substr(0, status.find('\n'));
        if (line.starts_with(name)) return policy::trimmed(line.substr(name.size()));
        status.remove_prefix(std::min(line.size() + 1, status.size()));
    }
    return {};
}

bool has_ended(int pid) {
    if (::kill(pid, 0) != 0 && errno == ESRCH) return true;
    const auto stat = stat_of(pid);
    return stat && stat->has_ended();
}

bool is_stopped(std::string_view status) {
    const std::string_view state = field_in(status, "State:");
    return state.starts_with('T') || state.starts_with('t');
}
bool is_stopped(int pid) { return is_stopped(proc_text(pid, "status")); }

std::optional<uid_t> owner_of(int pid) {
    struct stat status {};
    if (::stat(path_of(pid, "").c_str(), &status) != 0) return std::nullopt;
    return status.st_uid;
}

}  // namespace curb::control
