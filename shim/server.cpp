#include "server.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "connection.hpp"
#include "control/runtime_dir.hpp"
#include "devices.hpp"
#include "keep_errno.hpp"
#include "log.hpp"
#include "own_socket.hpp"
#include "worker.hpp"

namespace curb::shim::server {
namespace {

using Clock = Connection::Clock;
using policy::LogLevel;

constexpr std::size_t kClients = 16;
constexpr int kBacklog = 128;              // clients that wait to be taken in
constexpr std::size_t kReleases = 64;      // that have been asked for and not been done
constexpr std::chrono::seconds kPause{1};  // when the process has no descriptor left for another client

// What other threads tell the control thread. Leaked: they may until the process is gone.
struct Told {
    std::mutex mutex;
    struct Released {
        std::uint64_t client;
        std::optional<control::ReleaseReport> report;  // none: no memory was left for it
    };
    std::vector<Released> released;
    std::size_t asked = 0;  // releases that have not ended
};
Told &told() {
    static Told &made = *new Told;
    return made;
}

// Set: something is told and the thread has not begun to look yet.
constinit std::atomic<bool> pending{false};
// The socket that wakes the thread, and never closed by us: another thread may be about to use it.
constinit std::atomic<const OwnSocket *> waker{nullptr};

// The socket's file, for the end of the process.
struct Published {
    std::mutex mutex;
    bool exiting = false;
    pid_t owner = 0;
    control::Folder folder;
    std::string name;
    dev_t device = 0;
    ino_t inode = 0;
};
Published &published() {
    static Published &made = *new Published;
    return made;
}

// The lock is held. Not if another file stands there now: of a process with our pid in another pid namespace.
void unpublish(Published &file) {
    if (file.name.empty()) return;
    const std::string path = file.folder.path + "/" + file.name;
    struct stat status {};
    if (lstat(path.c_str(), &status) == 0 && status.st_dev == file.device && status.st_ino == file.inode)
        unlink(path.c_str());
    file.name.clear();
}

// Children that were forked run it too: the file is their parent's.
void at_exit() {
    Published &file = published();
    if (file.owner != getpid()) return;
    const std::scoped_lock lock(file.mutex);
    file.exiting = true;
    unpublish(file);
}

// Makes the thread look at what it was told. Leaves errno.
void wake() noexcept {
    if (pending.exchange(true, std::memory_order_seq_cst)) return;
    const KeepErrno keep_errno;
    const OwnSocket *socket = waker.load(std::memory_order_acquire);
    // A full one has woken it already.
    if (socket && socket->ours() && send(socket->number(), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) return;
}

void released(std::uint64_t client, const control::ReleaseReport &report) noexcept {
    {
        const std::scoped_lock lock(told().mutex);
        --told().asked;
        Told::Released &one = told().released.emplace_back();  // room was reserved
        one.client = client;
        try {
            one.report = report;
        } catch (...) {
            one.report.reset();
        }
    }
    wake();
}

control::Status status() {
    control::Status out{getpid(), CURB_VERSION, {}};
    for (int ordinal = 0; ordinal < devices::count(); ++ordinal) {
        const Device &device = devices::at(ordinal);
        out.gpus.push_back({ordinal, device.meter.is_mig() ? device.meter.mig_uuid() : device.meter.gpu_uuid(),
                            device.ledger.held(), device.ledger.of(Kind::managed),
                            device.contexts.load(std::memory_order_relaxed)});
    }
    return out;
}

// Asks the worker; the answer comes by released(). A failure is the answer at once.
std::optional<control::Failure> release(std::uint64_t client, const policy::ReleaseRequest &what) {
    {
        const std::scoped_lock lock(told().mutex);
        if (told().asked == kReleases)
            return control::Failure{"too many releases have been asked for that are not done yet; try again"};
        told().released.reserve(told().released.size() + told().asked + 1);
        ++told().asked;
    }
    worker::release(
        {"curb release", what, [client](const control::ReleaseReport &report) { released(client, report); }});
    return std::nullopt;
}

class Server {
  public:
    // Makes the socket, or says why there is none.
    void open(const control::Places &places);
    // As long as there is a socket.
    void run();

  private:
    void stop(const std::string &why);
    void wait();
    void take_in(Clock::time_point now);
    void answer(Connection &client, const std::string &line, Clock::time_point now);
    void hand_back(Clock::time_point now);
    void make_room();

    OwnSocket listening_;
    OwnSocket woken_;
    std::vector<Connection> clients_;
    std::uint64_t last_id_ = 0;
    Clock::time_point paused_until_{};
};

// A socket that others can connect to, or why there is none.
OwnSocket listening_at(const control::Folder &folder, std::string &why) {
    Published &file = published();
    const auto process = control::name_of(getpid());
    if (!process) {
        why = "/proc cannot be read";
        return {};
    }
    const std::string name = control::socket_name(*process);
    const std::string path = folder.path + "/" + name, fresh = folder.path + "/" + control::unfinished(name);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    fresh.copy(address.sun_path, sizeof address.sun_path - 1);
    OwnSocket out(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    const std::scoped_lock lock(file.mutex);
    if (file.exiting) return {};
    unlink(fresh.c_str());
    // Renamed once it listens: a socket that is found and refuses is a dead process's.
    struct stat status {};
    if (!out || bind(out.number(), reinterpret_cast<const sockaddr *>(&address), sizeof address) != 0 ||
        listen(out.number(), kBacklog) != 0 || lstat(fresh.c_str(), &status) != 0 ||
        rename(fresh.c_str(), path.c_str()) != 0) {
        why = path + ": " + std::strerror(errno);
        unlink(fresh.c_str());
        return {};
    }
    file.folder = folder;
    file.name = name;
    file.device = status.st_dev;
    file.inode = status.st_ino;
    return out;
}

void Server::open(const control::Places &places) {
    const auto none = [](const std::string &why) {
        if (!why.empty())
            log::write(LogLevel::info, "no control socket, so curb release does not reach this process: " + why);
    };
    const auto folder = control::runtime_directory(places, geteuid());
    if (!folder) return none(folder.error());
    int pair[2] = {-1, -1};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) != 0)
        return none(std::strerror(errno));
    woken_ = OwnSocket(pair[0]);
    auto *wakes = new OwnSocket(pair[1]);
    std::string why;
    listening_ = listening_at(*folder, why);
    if (!listening_) {
        woken_ = {};
        delete wakes;
        return none(why);
    }
    waker.store(wakes, std::memory_order_release);
    control::remove_stale(*folder);
}

void Server::run() {
    while (listening_) {
        pending.store(false, std::memory_order_seq_cst);
        try {
            hand_back(Clock::now());
            wait();
        } catch (...) {
            clients_.clear();  // out of host memory: whoever asks again may be luckier
            usleep(10'000);
        }
    }
}

// The socket is given up, and the thread ends.
void Server::stop(const std::string &why) {
    clients_.clear();
    listening_ = {};
    woken_ = {};
    {
        const std::scoped_lock lock(published().mutex);
        unpublish(published());
    }
    log::write(LogLevel::warning, why + ": curb release no longer reaches this process");
}

void Server::wait() {
    if (!listening_.ours() || !woken_.ours() || !waker.load(std::memory_order_relaxed)->ours())
        return stop("the program closed curb's descriptors");
    const Clock::time_point now = Clock::now();
    for (Connection &client : clients_)
        while (const auto line = client.line(now)) answer(client, *line, now);
    std::erase_if(clients_, [&](const Connection &client) {
        return client.done() || client.until().value_or(Clock::time_point::max()) <= now;
    });

    std::optional<Clock::time_point> until;
    const auto no_later_than = [&](Clock::time_point time) { until = std::min(until.value_or(time), time); };
    const bool paused = now < paused_until_;
    if (paused) no_later_than(paused_until_);
    for (const Connection &client : clients_)
        if (const auto idle = client.until()) no_later_than(*idle);

    std::array<pollfd, 2 + kClients> polled{};
    polled[0] = {woken_.number(), POLLIN, 0};
    polled[1] = {paused ? -1 : listening_.number(), POLLIN, 0};
    for (std::size_t i = 0; i < clients_.size(); ++i) polled[2 + i] = {clients_[i].number(), clients_[i].events(), 0};
    int timeout = -1;
    if (until)
        timeout = static_cast<int>(
            std::max<std::int64_t>(0, std::chrono::ceil<std::chrono::milliseconds>(*until - now).count()));
    if (poll(polled.data(), 2 + clients_.size(), timeout) < 0) {
        if (errno != EINTR) usleep(1000);  // no memory in the kernel: do not turn that into a loop
        return;
    }
    const Clock::time_point then = Clock::now();
    for (std::size_t i = 0; i < clients_.size(); ++i)
        if (polled[2 + i].revents != 0) clients_[i].on(polled[2 + i].revents, then);
    if (polled[0].revents != 0 && woken_.ours()) {
        std::array<char, 64> bytes;
        while (recv(woken_.number(), bytes.data(), bytes.size(), MSG_DONTWAIT) > 0) {
        }
    }
    if (polled[1].revents != 0) take_in(then);
}

// Room for one more client: that of the one that has been asking for the longest time, not of one that waits for us.
void Server::make_room() {
    if (clients_.size() < kClients) return;
    const auto longest =
        std::min_element(clients_.begin(), clients_.end(), [](const Connection &a, const Connection &b) {
            return a.until().value_or(Clock::time_point::max()) < b.until().value_or(Clock::time_point::max());
        });
    if (longest->until()) clients_.erase(longest);
}

void Server::take_in(Clock::time_point now) {
    for (std::size_t taken = 0; taken < kClients; ++taken) {  // those that are here are served in between
        if (!listening_.ours()) return;
        OwnSocket socket(accept4(listening_.number(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
        if (!socket) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) paused_until_ = now + kPause;
            return;
        }
        ucred peer{};
        socklen_t size = sizeof peer;
        if (getsockopt(socket.number(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 ||
            (peer.uid != geteuid() && peer.uid != 0))
            continue;
        make_room();
        Connection client(std::move(socket), ++last_id_, now);
        if (clients_.size() < kClients)
            clients_.push_back(std::move(client));
        else
            client.answer(control::Failure{"too many others wait for an answer of this process; try again"}, now, true);
    }
}

void Server::answer(Connection &client, const std::string &line, Clock::time_point now) {
    const auto request = control::parse_request(line);
    if (!request) return client.answer(control::Failure{request.error()}, now, true);
    if (const auto *what = std::get_if<policy::ReleaseRequest>(&*request)) {
        if (const auto failure = release(client.id(), *what)) client.answer(*failure, now);
    } else {
        client.answer(status(), now);
    }
}

// To those who still wait for it.
void Server::hand_back(Clock::time_point now) {
    std::vector<Told::Released> done;
    {
        const std::scoped_lock lock(told().mutex);
        done.reserve(told().asked);  // what is swapped in must hold what is still to come
        done.swap(told().released);
    }
    for (const Told::Released &one : done) {
        const auto client = std::find_if(clients_.begin(), clients_.end(),
                                         [&](const Connection &each) { return each.id() == one.client; });
        if (client == clients_.end()) continue;
        if (one.report)
            client->answer(*one.report, now);
        else
            client->answer(control::Failure{"the release is done, but there is no memory to say what came of it"}, now);
    }
}

const control::Places *around = nullptr;

void serve() {
    Server server;  // on a thread that nobody joins: at exit it goes with the process
    try {
        server.open(*around);
    } catch (...) {
        log::write(LogLevel::info, "out of host memory: no control socket");
    }
    server.run();
}

}  // namespace

void start(void (*start_thread)(void (*body)(), const char *name) noexcept) noexcept try {
    // Here, because the program's other threads may change the environment later.
    around = new control::Places(control::places());
    published().owner = getpid();
    told();
    atexit(at_exit);
    start_thread(serve, "curb-control");
} catch (...) {
    log::write(LogLevel::info, "out of host memory: no control socket");
}

void in_fork_child() noexcept { OwnSocket::close_in_fork_child(); }

}  // namespace curb::shim::server
