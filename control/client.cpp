#include "control/client.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <optional>
#include <set>
#include <sstream>

#include "connect.hpp"
#include "control/runtime_dir.hpp"
#include "policy/words.hpp"

namespace curb::control {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// A process ends in this time once its socket has closed, unless it lives on without it.
constexpr milliseconds kEnding{500};
constexpr int kLook = 1000;  // milliseconds between looks whether a process that is waited for has ended

class Deadline {
  public:
    explicit Deadline(milliseconds patience)
        : end_(patience >= std::chrono::hours(24 * 365) ? Clock::time_point::max() : Clock::now() + patience) {}
    // For poll; -1: none.
    [[nodiscard]] int left() const {
        if (end_ == Clock::time_point::max()) return -1;
        const auto left = std::chrono::ceil<milliseconds>(end_ - Clock::now()).count();
        return static_cast<int>(std::clamp<long long>(left, 0, 1'000'000));
    }
    [[nodiscard]] bool passed() const { return Clock::now() >= end_; }

  private:
    Clock::time_point end_;
};

std::string process_text(int pid) { return "process " + std::to_string(pid); }

std::string proc(int pid, const char *what) { return "/proc/" + std::to_string(pid) + "/" + what; }

// As much as can be read: a process may end meanwhile. (Not by a stream, whose iterators throw then.)
std::string content_of(const std::string &file) {
    const Descriptor in(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
    std::string out;
    std::array<char, 4096> block;
    for (;;) {
        const ssize_t got = in ? ::read(in.number(), block.data(), block.size()) : 0;
        if (got <= 0) return out;
        out.append(block.data(), static_cast<std::size_t>(got));
    }
}

// The value of "NAME:" in /proc/PID/status, without blanks around it.
std::string status_field(int pid, std::string_view name) {
    std::istringstream lines(content_of(proc(pid, "status")));
    for (std::string line; std::getline(lines, line);) {
        if (!line.starts_with(name)) continue;
        const std::size_t begin = line.find_first_not_of(" \t", name.size());
        return begin == std::string::npos ? "" : line.substr(begin);
    }
    return {};
}

// Whether it has ended; a zombie has.
bool has_ended(int pid) {
    if (::kill(pid, 0) != 0 && errno == ESRCH) return true;
    const std::string state = status_field(pid, "State:");
    return state.starts_with('Z') || state.starts_with('X');
}

uid_t owner_of(int pid) {
    struct stat status {};
    return ::stat(proc(pid, "").c_str(), &status) == 0 ? status.st_uid : ::geteuid();
}

// Where the socket of this process may be. Its XDG_RUNTIME_DIR need not be that of whoever asks: they come from
// different shells, or one of them from cron.
std::vector<Folder> folders_for(int pid) {
    Places around = places();
    std::vector<Folder> out = folders(around, ::geteuid());
    const uid_t owner = owner_of(pid);
    std::istringstream environment(content_of(proc(pid, "environ")));
    constexpr std::string_view kName = "XDG_RUNTIME_DIR=";
    for (std::string variable; std::getline(environment, variable, '\0');)
        if (variable.starts_with(kName)) around.xdg = variable.substr(kName.size());
    for (Folder &folder : folders(around, owner == 0 ? ::geteuid() : owner)) {
        if (std::find(out.begin(), out.end(), folder) == out.end()) out.push_back(std::move(folder));
    }
    return out;
}

// Who listens at the other end, as this pid namespace knows it.
std::optional<ucred> peer(const Descriptor &connection) {
    ucred out{};
    socklen_t size = sizeof out;
    if (::getsockopt(connection.number(), SOL_SOCKET, SO_PEERCRED, &out, &size) != 0) return std::nullopt;
    return out;
}

// A connection to one socket, waited for while others are taken in.
Descriptor connection_to(const Folder &folder, const std::string &name, const Deadline &deadline, int &error) {
    for (;;) {
        Descriptor out = connect_to(folder.path + "/" + name, error);
        if (out) return out;
        if (error == ECONNREFUSED) remove_socket(folder, name);
        if (error != EAGAIN || deadline.passed()) return out;
        ::poll(nullptr, 0, 5);
    }
}

struct Found {
    Descriptor connection;
    bool busy = false;     // there is one, but it takes nobody in
    bool refused = false;  // there is one of this very process, on which it does not listen
};

// A connection to this process. One to another process with the same pid (an earlier one, one of a container that
// shares the folder) is not taken for it.
Found find(int pid, const Deadline &deadline) {
    Found out;
    const auto now = name_of(pid);
    for (const Folder &folder : folders_for(pid)) {
        for (const std::string &name : sockets_in(folder)) {
            const auto process = parse_socket_name(name);
            if (process->pid != pid) continue;
            int error = 0;
            Descriptor connection = connection_to(folder, name, deadline, error);
            if (!connection) {
                out.busy |= error == EAGAIN;
                out.refused |= error == ECONNREFUSED && now == process;
                continue;
            }
            const auto who = peer(connection);
            // Root may have opened the folder's socket by another user's leave: that user's process must answer.
            if (!who || who->pid != pid || (who->uid != folder.owner && who->uid != 0)) continue;
            out.connection = std::move(connection);
            return out;
        }
    }
    return out;
}

// Whether it ends, now that its socket is closed.
bool ends(int pid) {
    for (const Deadline deadline(kEnding); !deadline.passed(); ::poll(nullptr, 0, 5))
        if (has_ended(pid)) return true;
    return false;
}

std::string not_found(int pid, const Found &found) {
    const std::string process = process_text(pid);
    std::string none = "there is no " + process;
    if (found.refused ? ends(pid) : has_ended(pid)) return none;
    if (found.busy) return process + " takes no more requests: others keep its control socket busy; try again";
    if (found.refused)
        return process +
               " no longer listens on its control socket: the program replaced itself, or closed descriptors "
               "that are not its own; restart it";
    const uid_t owner = owner_of(pid);
    if (::geteuid() != 0 && owner != ::geteuid())
        return process + " belongs to user " + std::to_string(owner) + ": ask as that user, or as root";
    // "4711\t17": the pid in each namespace, from ours inwards.
    const std::string pids = status_field(pid, "NSpid:");
    if (const std::size_t inner = pids.rfind('\t'); inner != std::string::npos)
        return process + " runs in a container, where it is " + process_text(std::stoi("0" + pids.substr(inner + 1))) +
               ": ask for that one inside the container";
    const std::string maps = content_of(proc(pid, "maps"));
    if (maps.empty())
        return ends(pid) ? none : process + " does not run under curb, or does not let others look whether it does";
    if (maps.find("/libcurb.so") == std::string::npos)
        return process + " does not run under curb; start it by: curb run -- COMMAND";
    return process +
           " has no control socket: it has not used CUDA yet, or could not make one (its log says so at level "
           "info)";
}

std::string seconds_text(milliseconds time) {
    return time.count() % 1000 == 0 ? std::to_string(time.count() / 1000) + " s" : std::to_string(time.count()) + " ms";
}

// Why there is no answer, though the connection is closed.
std::string closed(int pid) {
    return process_text(pid) +
           (ends(pid) ? " ended before it answered" : " closed the connection without an answer; try again");
}

// Waits until the connection is ready for `events`; false: the deadline has passed, or the process has ended. Its end
// closes the connection, unless it was duplicated into a child by other means than fork.
bool ready(int pid, const Descriptor &connection, short events, const Deadline &deadline) {
    for (;;) {
        pollfd one{connection.number(), events, 0};
        const int left = deadline.left();
        const int count = ::poll(&one, 1, left < 0 ? kLook : std::min(left, kLook));
        if (count > 0) return true;
        if (count == 0 && (deadline.passed() || has_ended(pid))) return false;
        if (count < 0 && errno != EINTR) ::usleep(1000);
    }
}

std::string late_text(int pid, milliseconds patience) {
    return process_text(pid) + " has not answered for " + seconds_text(patience) +
           (status_field(pid, "State:").starts_with('T') ? ": it is stopped; kill -CONT " + std::to_string(pid)
                                                         : ": it may be stuck, or the machine overloaded");
}

// The answer, or why there is none.
Reply exchange(int pid, const Descriptor &connection, const std::string &request, milliseconds patience,
               const Deadline &deadline) {
    const auto late = [&] { return has_ended(pid) ? closed(pid) : late_text(pid, patience); };
    for (std::size_t sent = 0; sent < request.size();) {
        if (!ready(pid, connection, POLLOUT, deadline)) return Failure{late()};
        const ssize_t more = ::send(connection.number(), request.data() + sent, request.size() - sent, MSG_NOSIGNAL);
        if (more > 0) sent += static_cast<std::size_t>(more);
        if (more < 0 && errno != EAGAIN && errno != EINTR) break;  // an answer may have come all the same
    }
    std::string line;
    std::array<char, 4096> block;
    while (line.size() <= kLongestReply) {
        if (!ready(pid, connection, POLLIN, deadline)) return Failure{late()};
        const ssize_t got = ::recv(connection.number(), block.data(), block.size(), 0);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
        if (got <= 0) return Failure{closed(pid)};
        line.append(block.data(), static_cast<std::size_t>(got));
        const std::size_t end = line.find('\n');
        if (end == std::string::npos) continue;
        auto reply = parse_reply(std::string_view(line).substr(0, end));
        if (!reply) return Failure{process_text(pid) + " answers what cannot be read: " + reply.error()};
        return std::move(reply).value();
    }
    return Failure{process_text(pid) + " answers more than an answer can be long"};
}

}  // namespace

Reply ask(int pid, const Request &request, milliseconds patience) {
    if (pid <= 0) return Failure{std::to_string(pid) + " is not the pid of a process"};
    const Deadline deadline(patience);
    const Found found = find(pid, deadline);
    if (!found.connection) return Failure{not_found(pid, found)};
    return exchange(pid, found.connection, text(request) + "\n", patience, deadline);
}

std::vector<int> processes() {
    std::set<int> out;
    for (const Folder &folder : folders(places(), ::geteuid())) {
        remove_stale(folder);
        for (const std::string &name : sockets_in(folder)) {
            int error = 0;
            const Descriptor connection = connect_to(folder.path + "/" + name, error);
            const auto process = parse_socket_name(name);
            if (connection) {
                const auto who = peer(connection);
                if (who && who->pid == process->pid && (who->uid == folder.owner || who->uid == 0) &&
                    !has_ended(process->pid))
                    out.insert(process->pid);
            } else if (error == EAGAIN && name_of(process->pid) == process) {
                out.insert(process->pid);  // busy, so it lives
            }
        }
    }
    return {out.begin(), out.end()};
}

}  // namespace curb::control
