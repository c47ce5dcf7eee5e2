// Finds the sockets of all processes that can be asked.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "asked.hpp"
#include "connect.hpp"
#include "control/client.hpp"
#include "control/proc.hpp"
#include "control/runtime_dir.hpp"
#include "elsewhere.hpp"
#include "exchange.hpp"

namespace curb::control {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kTidying{100};

// A socket, and the state of its connection.
struct Socket {
    ProcessName process;
    Folder folder;
    std::string name;
    std::shared_ptr<const Descriptor> inside{};  // the folder, if it is in a container
    Descriptor connection{};
    int error = 0;  // why there is no connection
    std::optional<std::string> fault{};
};

void distrust(Socket &socket, uid_t user) {
    socket.fault = process_text(socket.process.pid) + " belongs to user " + std::to_string(user) +
                   ", but its control socket stands in a folder of user " + std::to_string(socket.folder.owner) +
                   ", so its answer is not trusted: " + socket.folder.path;
}

// Returns false if no process can be asked by this socket, to which we could not connect.
bool lives_unconnected(Socket &socket) {
    const int pid = socket.process.pid;
    if (socket.error == ECONNREFUSED && !socket.inside) remove_socket(socket.folder, socket.name);
    if (too_many_open(socket.error)) return true;  // nor can we read /proc now
    if (const auto user = owner_of(pid); socket.error == EPERM && user && *user != socket.folder.owner)
        distrust(socket, *user);
    if (socket.fault) return name_of(pid) == socket.process;
    return socket.error == EAGAIN && name_of(pid) == socket.process && belongs_in(socket.folder, pid);
}

// Tries to connect once. Returns false if no process can be asked by this socket. True without a connection: the
// process lives, but takes no connection just now (EAGAIN).
bool knock(Socket &socket) {
    const int pid = socket.process.pid;
    socket.connection = connect_to(socket.folder.path + "/" + socket.name, socket.folder.owner, socket.error);
    if (!socket.connection) return lives_unconnected(socket);
    const auto who = peer(socket.connection);
    // Another process may have the pid by now, or one of another pid namespace shares the folder. (A child that has
    // inherited the socket keeps it open after its parent has died.)
    if (!who || who->pid != pid || has_ended(pid)) return false;
    const auto now = name_of(pid);
    if (now && now != socket.process) return false;
    if (!speaks_for(*who, socket.folder)) {
        if (!now) return false;
        distrust(socket, who->uid);
        socket.connection = {};
        return true;
    }
    return belongs_in(socket.folder, pid);
}

// True if the process runs, or if /proc does not show it.
bool runs(const ProcessName &process) {
    if (has_ended(process.pid)) return false;
    const auto now = name_of(process.pid);
    return !now || now == process;
}

// The contents of the folders.
struct Found {
    std::vector<Socket> sockets;                         // each process once, in the order of their pids
    std::vector<std::pair<Folder, std::string>> others;  // names of processes that have ended
};

// Connects only to processes that run: their number is limited, that of names in a folder is not.
Found look_for_sockets() {
    Found out;
    for (const Folder &folder : folders(places(), ::geteuid())) {
        for (std::string &name : unfinished_in(folder)) out.others.emplace_back(folder, std::move(name));
        for (std::string &name : sockets_in(folder)) {
            if (const ProcessName process = *parse_socket_name(name); runs(process))
                out.sockets.push_back({process, folder, std::move(name)});
            else
                out.others.emplace_back(folder, std::move(name));
        }
    }
    for (InnerSocket &one : sockets_elsewhere(!out.others.empty()))
        if (const auto process = name_of(one.pid))
            out.sockets.push_back({*process, std::move(one.folder), std::move(one.name), std::move(one.open)});
    std::vector<Socket> &sockets = out.sockets;
    std::erase_if(sockets, [](Socket &socket) { return !knock(socket); });  // all folders are closed by now
    // Of several sockets with one pid the one that answers comes first: another user may have put one there to hide it.
    const auto rank = [](const Socket &one) {
        return std::tuple(one.process.pid, one.fault.has_value(), !one.connection);
    };
    const auto before = [&](const Socket &a, const Socket &b) { return rank(a) < rank(b); };
    std::stable_sort(sockets.begin(), sockets.end(), before);
    const auto same = [](const Socket &a, const Socket &b) { return a.process.pid == b.process.pid; };
    sockets.erase(std::unique(sockets.begin(), sockets.end(), same), sockets.end());
    return out;
}

// Deletes the sockets of dead processes, as many as it can until the deadline.
void clean_up(const Found &found, const Deadline &deadline) {
    for (const auto &[folder, name] : found.others) {
        if (deadline.passed()) return;
        remove_socket(folder, name);
    }
}

// Connects to the process once more.
Attempt attempt(Socket &socket) {
    if (!knock(socket)) return {.fault = closed_text(socket.process.pid, true)};
    return {std::move(socket.connection), socket.error, socket.fault};
}

}  // namespace

std::vector<Answer> ask_all(const Request &request, milliseconds patience) {
    Found found = look_for_sockets();
    // The clock starts here: the search takes long if anybody runs many processes, and none of those asked is to blame.
    const std::vector<Line> question = lines_of({{request, patience}});
    std::vector<Asked> processes;
    processes.reserve(found.sockets.size());
    for (Socket &one : found.sockets) {
        const auto socket = std::make_shared<Socket>(std::move(one));
        Attempt first{std::move(socket->connection), socket->error, socket->fault};
        processes.emplace_back(
            socket->process.pid, std::move(first), [socket] { return attempt(*socket); }, question);
    }
    clean_up(found, Deadline(patience / 4));  // while they answer
    std::vector<Answer> out;
    ask_each(std::move(processes), [&](Answer one) { out.push_back(std::move(one)); });
    std::sort(out.begin(), out.end(), [](const Answer &a, const Answer &b) { return a.pid < b.pid; });
    return out;
}

std::vector<int> processes() {
    std::vector<int> out;
    const Found found = look_for_sockets();
    clean_up(found, Deadline(kTidying));
    for (const Socket &socket : found.sockets)
        if (!socket.fault) out.push_back(socket.process.pid);
    return out;
}

}  // namespace curb::control
