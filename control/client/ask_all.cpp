// Asks all capped processes in one poll loop, so that no process can block the others.
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>

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

// True if this process has too many open files. Answers that arrive free some.
bool too_many_open(int error) { return error == EMFILE || error == ENFILE; }

// Tries to connect once. Returns false if no process can be asked by this socket. True without a connection: the
// process lives, but takes no connection just now (EAGAIN).
bool knock(Socket &socket) {
    const int pid = socket.process.pid;
    socket.connection = connect_to(socket.folder.path + "/" + socket.name, socket.error);
    if (!socket.connection) {
        if (socket.error == ECONNREFUSED && !socket.inside) remove_socket(socket.folder, socket.name);
        if (too_many_open(socket.error)) return true;  // nor can we read /proc now
        return socket.error == EAGAIN && name_of(pid) == socket.process && belongs_in(socket.folder, pid);
    }
    const auto who = peer(socket.connection);
    // Another process may have the pid by now, or one of another pid namespace shares the folder. (A child that has
    // inherited the socket keeps it open after its parent has died.)
    if (!who || who->pid != pid || has_ended(pid)) return false;
    const auto now = name_of(pid);
    if (now && now != socket.process) return false;
    if (!speaks_for(*who, socket.folder)) {
        if (!now) return false;
        socket.fault = process_text(pid) + " belongs to user " + std::to_string(who->uid) +
                       ", but its control socket stands in a folder of user " + std::to_string(socket.folder.owner) +
                       ", so its answer is not trusted: " + socket.folder.path;
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
    for (InnerSocket &one : sockets_elsewhere())
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

// One process, from the first attempt to connect to its answer.
class Asked {
  public:
    Asked(Socket socket, const std::string &line) : socket_(std::move(socket)), line_(line) {
        if (socket_.fault)
            fail(*socket_.fault);
        else
            begin();
    }
    [[nodiscard]] int pid() const { return socket_.process.pid; }
    [[nodiscard]] bool done() const { return reply_.has_value(); }
    // Returns nullopt if there is nothing to poll for now. Then call look() again after kAgain.
    [[nodiscard]] std::optional<pollfd> poll_for() const {
        if (!exchange_ || closed_) return std::nullopt;
        return pollfd{exchange_->descriptor(), exchange_->events(), 0};
    }
    void go_on() {
        if (!exchange_ || closed_) return;
        switch (exchange_->go_on()) {
            case Exchange::State::under_way: break;
            case Exchange::State::answered: finish(exchange_->take()); break;
            case Exchange::State::closed: closed_.emplace(kEnding); break;
        }
    }
    // Checks for changes that no descriptor shows.
    void look() {
        if (closed_ || exchange_) {
            if (has_ended(pid()))
                fail(closed_text(pid(), true));
            else if (closed_ && closed_->passed())
                fail(closed_text(pid(), false));
        } else if (knock(socket_)) {
            if (socket_.fault) return fail(*socket_.fault);
            begin();
        } else {
            fail(closed_text(pid(), true));
        }
    }
    void give_up(milliseconds patience) {
        if (closed_) return fail(closed_text(pid(), has_ended(pid())));
        if (exchange_) return fail(has_ended(pid()) ? closed_text(pid(), true) : late_text(pid(), patience));
        if (socket_.error == EAGAIN) return fail(is_stopped(pid()) ? late_text(pid(), patience) : busy_text(pid()));
        fail(process_text(pid()) +
             " was not asked: too many files are open here; raise the limit (ulimit -n), and try again");
    }
    Answer take() { return {pid(), *std::move(reply_)}; }

  private:
    void begin() {
        if (!socket_.connection) return;
        exchange_.emplace(pid(), std::move(socket_.connection), line_);
        go_on();
    }
    void fail(std::string message) { finish(Failure{std::move(message)}); }
    void finish(Reply reply) {
        reply_ = std::move(reply);
        exchange_.reset();  // frees a descriptor, for which another one may wait
    }

    Socket socket_;
    const std::string &line_;
    std::optional<Exchange> exchange_;
    std::optional<Deadline> closed_;  // the connection is closed; the process has until then to end
    std::optional<Reply> reply_;
};

// Waits until one of them can go on, or has to be checked. (poll takes at most as many entries as files may be open.)
void wait(std::vector<Asked> &processes, const Deadline &deadline) {
    std::vector<pollfd> polled;
    std::vector<Asked *> talking, others;
    for (Asked &one : processes) {
        if (one.done()) continue;
        const auto what = one.poll_for();
        if (what) polled.push_back(*what);
        (what ? talking : others).push_back(&one);
    }
    const int left = deadline.left(), look = others.empty() ? kLook : kAgain;
    const int ready = ::poll(polled.data(), polled.size(), left < 0 ? look : std::min(left, look));
    if (ready < 0 && errno != EINTR) ::usleep(1000);
    for (std::size_t i = 0; i < polled.size() && ready >= 0; ++i) {
        if (polled[i].revents != 0)
            talking[i]->go_on();
        else if (ready == 0)
            talking[i]->look();
    }
    for (Asked *one : others) one->look();
}

}  // namespace

std::vector<Answer> ask_all(const Request &request, milliseconds patience) {
    const Deadline deadline(patience), tidying(patience / 4);
    const std::string line = text(request) + "\n";
    std::vector<Asked> processes;
    Found found = look_for_sockets();
    processes.reserve(found.sockets.size());
    for (Socket &socket : found.sockets) processes.emplace_back(std::move(socket), line);
    clean_up(found, tidying);  // while they answer
    const auto is_done = [](const Asked &one) { return one.done(); };
    while (!std::all_of(processes.begin(), processes.end(), is_done) && !deadline.passed()) wait(processes, deadline);
    std::vector<Answer> out;
    for (Asked &one : processes) {
        if (!one.done()) one.give_up(patience);
        out.push_back(one.take());
    }
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
