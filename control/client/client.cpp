#include "control/client.hpp"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "connect.hpp"
#include "control/proc.hpp"
#include "control/runtime_dir.hpp"
#include "elsewhere.hpp"
#include "exchange.hpp"

namespace curb::control {
namespace {

using std::chrono::milliseconds;

// Returns the folders in which the socket of this process may be. Its XDG_RUNTIME_DIR may differ from ours: it was
// started from another shell, or by cron.
std::vector<Folder> folders_for(int pid) {
    Places around = places();
    std::vector<Folder> out = folders(around, ::geteuid());
    const uid_t owner = owner_of(pid).value_or(::geteuid());
    if (std::string xdg = runtime_directory_of(pid); !xdg.empty()) around.xdg = std::move(xdg);
    for (Folder &folder : folders(around, owner == 0 ? ::geteuid() : owner)) {
        if (std::find(out.begin(), out.end(), folder) == out.end()) out.push_back(std::move(folder));
    }
    return out;
}

// Connects to one socket. Tries again while others connect (EAGAIN).
Descriptor connection_to(const Folder &folder, const std::string &name, const Deadline &deadline, int &error) {
    for (;;) {
        Descriptor out = connect_to(folder.path + "/" + name, error);
        if (out) return out;
        if (error == ECONNREFUSED) remove_socket(folder, name);
        if (error != EAGAIN || deadline.passed()) return out;
        ::poll(nullptr, 0, kAgain);
    }
}

struct Listener {
    Descriptor connection;
    bool busy = false;     // there is a socket, but it takes no connections now
    bool refused = false;  // there is a socket of this process, but it no longer listens
};

// Connects to this process. Skips other processes with the same pid: an earlier one, one of a container that shares the
// folder, one of another user.
Listener find(int pid, const Deadline &deadline) {
    Listener out;
    const auto now = name_of(pid);
    for (const Folder &folder : folders_for(pid)) {
        if (!belongs_in(folder, pid)) continue;
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
            if (!who || who->pid != pid || !speaks_for(*who, folder) || (now && now != process)) continue;
            out.connection = std::move(connection);
            return out;
        }
    }
    for (const InnerSocket &socket : sockets_inside(pid)) {
        int error = 0;
        Descriptor connection = connect_to(socket.folder.path + "/" + socket.name, error);
        const auto who = connection ? peer(connection) : std::nullopt;
        if (!who || who->pid != pid || !speaks_for(*who, socket.folder)) continue;
        out.connection = std::move(connection);
        break;
    }
    return out;
}

// True if the process ends within kEnding. Call it once its socket has closed.
bool ends(int pid) {
    for (const Deadline deadline(kEnding); !deadline.passed(); ::poll(nullptr, 0, kAgain))
        if (has_ended(pid)) return true;
    return false;
}

std::string not_found(int pid, const Listener &found) {
    const std::string process = process_text(pid);
    std::string none = "there is no " + process;
    if (found.refused ? ends(pid) : has_ended(pid)) return none;
    if (found.busy) return busy_text(pid);
    if (found.refused)
        return process +
               " no longer listens on its control socket: the program replaced itself, or closed descriptors "
               "that are not its own; restart it";
    const auto owner = owner_of(pid);
    if (::geteuid() != 0 && owner && *owner != ::geteuid())
        return process + " belongs to user " + std::to_string(*owner) + ": ask as that user, or as root";
    if (const int inner = innermost_pid(pid); inner != pid)
        return process + " runs in a container, where it is " + process_text(inner) +
               ", and has no control socket that can be reached from here: ask for that one inside the container";
    const std::string maps = proc_text(pid, "maps");
    if (ends(pid)) return none;  // its socket and its libraries are gone before it is
    if (maps.empty()) return process + " does not run under curb, or does not let others look whether it does";
    if (maps.find("/libcurb.so") == std::string::npos)
        return process + " does not run under curb; start it by: curb run -- COMMAND";
    return process +
           " has no control socket: it has not used CUDA yet, or could not make one (its log says so at level "
           "info)";
}

// Waits until the exchange can go on. Returns false if the deadline has passed, or the process has ended.
bool ready(int pid, const Exchange &exchange, const Deadline &deadline) {
    for (;;) {
        pollfd one{exchange.descriptor(), exchange.events(), 0};
        const int left = deadline.left();
        const int count = ::poll(&one, 1, left < 0 ? kLook : std::min(left, kLook));
        if (count > 0) return !deadline.passed();  // a process may send one byte after the other
        if (count == 0 && (deadline.passed() || has_ended(pid))) return false;
        if (count < 0 && errno != EINTR) ::usleep(1000);
    }
}

}  // namespace

Reply ask(int pid, const Request &request, milliseconds patience) {
    if (pid <= 0) return Failure{std::to_string(pid) + " is not the pid of a process"};
    const Deadline deadline(patience);
    Listener found = find(pid, deadline);
    if (!found.connection) return Failure{not_found(pid, found)};
    const std::string line = text(request) + "\n";
    Exchange exchange(pid, std::move(found.connection), line);
    for (;;) {
        switch (exchange.go_on()) {
            case Exchange::State::answered: return exchange.take();
            case Exchange::State::closed: return Failure{closed_text(pid, ends(pid))};
            case Exchange::State::under_way: break;
        }
        if (!ready(pid, exchange, deadline))
            return Failure{has_ended(pid) ? closed_text(pid, true) : late_text(pid, patience)};
    }
}

}  // namespace curb::control
