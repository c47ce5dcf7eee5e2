#include "control/proc.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>

#include "control/descriptor.hpp"
#include "policy/values/words.hpp"
#include "process_stat.hpp"

namespace curb::control {
namespace {

// Appends the text of the file, at most `most` bytes. Returns false if it cannot be opened or read. Not by a stream,
// whose iterators throw if the process ends meanwhile.
bool read_into(std::string &out, const std::string &path, std::size_t most) {
    const Descriptor in(above_standard(::open(path.c_str(), O_RDONLY | O_CLOEXEC)));
    std::array<char, 4096> block;
    for (;;) {
        const std::size_t left = std::min(most - out.size(), block.size());
        const ssize_t got = in ? ::read(in.number(), block.data(), left) : -1;
        if (got <= 0) return got == 0;
        out.append(block.data(), static_cast<std::size_t>(got));
    }
}

}  // namespace

std::string process_text(int pid) { return "process " + std::to_string(pid); }

std::string proc_path(int pid, const std::string &what) { return "/proc/" + std::to_string(pid) + "/" + what; }

std::optional<std::string> file_text(const std::string &path, std::size_t most) {
    std::string out;
    if (!read_into(out, path, most)) return std::nullopt;
    return out;
}

std::string proc_text(int pid, const char *what, std::size_t most) {
    std::string out;
    read_into(out, proc_path(pid, what), most);
    return out;
}

bool each_line(int pid, const char *what, const std::function<bool(std::string_view)> &each) {
    constexpr std::size_t kMost = std::size_t{32} << 20, kLongest = 8192;
    const Descriptor in(above_standard(::open(proc_path(pid, what).c_str(), O_RDONLY | O_CLOEXEC)));
    std::array<char, 4096> block;  // a file of /proc gives no more at once
    std::string line;
    bool any = false;
    for (std::size_t all = 0; all < kMost;) {
        const ssize_t got = in ? ::read(in.number(), block.data(), block.size()) : -1;
        if (got <= 0) break;
        any = true;
        all += static_cast<std::size_t>(got);
        for (std::string_view left(block.data(), static_cast<std::size_t>(got)); !left.empty();) {
            const std::size_t end = left.find('\n');
            line += left.substr(0, std::min(end, kLongest - std::min(kLongest, line.size())));
            if (end == std::string_view::npos) break;
            if (!each(line)) return true;
            line.clear();
            left.remove_prefix(end + 1);
        }
    }
    return any;
}

std::optional<bool> has_mapped(int pid, std::string_view text) {
    bool found = false;
    const bool readable = each_line(pid, "maps", [&](std::string_view line) {
        found = line.find(text) != std::string_view::npos;
        return !found;
    });
    return readable ? std::optional(found) : std::nullopt;
}

std::string_view field_in(std::string_view status, std::string_view name) {
    while (!status.empty()) {
        const std::string_view line = status.substr(0, status.find('\n'));
        if (line.starts_with(name)) return policy::trimmed(line.substr(name.size()));
        status.remove_prefix(std::min(line.size() + 1, status.size()));
    }
    return {};
}

int innermost_pid(int pid, std::string_view status) {
    const std::string_view pids = field_in(status, "NSpid:");  // "4711\t17": in each namespace, from ours inwards
    return policy::whole_number<int>(pids.substr(pids.rfind('\t') + 1)).value_or(pid);
}

std::uint64_t number_in(std::string_view status, std::string_view name) {
    const std::string_view value = field_in(status, name);
    std::uint64_t out = 0;
    std::from_chars(value.data(), value.data() + value.size(), out);
    return out;
}

bool has_ended(int pid) {
    if (::kill(pid, 0) != 0 && errno == ESRCH) return true;
    const auto stat = stat_of(pid);
    return stat && stat->has_ended();
}

bool is_exiting(int pid) noexcept {
    constexpr unsigned long kExiting = 0x4, kDumpsCore = 0x200;  // PF_EXITING and PF_DUMPCORE of the kernel
    const auto stat = stat_of(pid);
    return !stat || stat->has_ended() || stat->killed || (stat->flags & (kExiting | kDumpsCore)) != 0;
}

bool is_stopped(std::string_view status) {
    const std::string_view state = field_in(status, "State:");
    return state.starts_with('T') || state.starts_with('t');
}
bool is_stopped(int pid) { return is_stopped(proc_text(pid, "status")); }

std::optional<uid_t> owner_of(int pid) {
    struct stat status {};
    if (::stat(proc_path(pid, "").c_str(), &status) != 0) return std::nullopt;
    return status.st_uid;
}

}  // namespace curb::control
